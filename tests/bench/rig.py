"""`python -m tests.bench rig`: how fast a rig that is as it should be is found to be so.

On a lab that serves; exit status 1 when something was not as it should be.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

import yaml

from deploys.plans.rig import endpoint
from facts.endpoint import ask
from facts.node import Snapshot
from gates.fabric import PING_OVERHEAD
from gates.processes import own_container
from gates.recipe import drift
from node.rules.engine import MAX_TOKENS, PROMPT
from schema.core import SpecError
from schema.plan import CONTAINER, UNIT, Node, Plan
from schema.render_engine import ENV_PATH, SCRIPT_PATH, UNIT_PATH
from schema.snapshot import NodeSnapshot, Unit, Unreadable
from tests.infra.observe import observe
from tests.infra.plugin import ROOT, Connections, Rig, load_rig

# The figures as a table with targets, and docs/benchmarks.md.

MB = 10**6
# The range of five holds the true median with 94 %, whatever the distribution.
ROUNDS = 5
SPREAD = """\
Each figure is the median of the rounds, with the lowest and the highest: the range of five holds
the true median with 94 %. A ratio is taken in each round, of two figures that were measured one
after the other."""


@dataclass
class Figures:
    """What the rounds measured: seconds, commands a node and bytes, one entry a round."""

    serve: list[float] = field(default_factory=list)
    commands: list[int] = field(default_factory=list)
    ansible: list[float] = field(default_factory=list)
    tuned: list[float] = field(default_factory=list)
    cli_start: list[float] = field(default_factory=list)
    connect: list[float] = field(default_factory=list)
    snapshot: list[float] = field(default_factory=list)
    script: list[float] = field(default_factory=list)
    completion: list[float] = field(default_factory=list)
    host_seconds: list[float] = field(default_factory=list)
    host_bytes: list[int] = field(default_factory=list)
    doctor: list[float] = field(default_factory=list)
    restart: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A line of the table; `met` None where there is no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


def rows(figures: Figures) -> list[Row]:
    """The table: medians of the rounds; the commands a node are the most of any round."""
    floor = [
        sum(parts)
        for parts in zip(figures.cli_start, figures.connect, figures.snapshot, strict=True)
    ]
    answered = [sum(parts) for parts in zip(floor, figures.completion, strict=True)]
    faster, tuned = (ratios(each, figures.serve) for each in (figures.ansible, figures.tuned))
    whole = ratios(figures.serve, answered)
    commands = max(figures.commands)
    overhead = [a - b for a, b in zip(figures.restart, figures.by_hand, strict=True)]
    seconds, size = median(figures.host_seconds), max(figures.host_bytes) / MB
    return [
        Row("serve that changes nothing, wall", in_seconds(figures.serve)),
        Row("serve: remote commands a host", str(commands), "≤ 3", commands <= 3),
        Row("Ansible, the same twenty checks, wall", in_seconds(figures.ansible)),
        Row("serve against Ansible", in_times(faster, "faster"), "≥ 10 in each round",
            min(faster) >= 10),
        Row("Ansible without fact gathering, wall", in_seconds(figures.tuned)),
        Row("serve against that", in_times(tuned, "faster")),
        Row("pyinfra's CLI start (A)", in_seconds(figures.cli_start)),
        Row("a new ssh connection to each host (B)", in_seconds(figures.connect)),
        Row("one snapshot of each host, connection open (C)", in_seconds(figures.snapshot)),
        Row("serve against A + B + C", in_times(ratios(figures.serve, floor))),
        Row("serve against its floor, A + B + C + the completion", in_times(whole), "≤ 1.2",
            median(whole) <= 1.2),
        Row("one script with the checks over ssh, wall", in_seconds(figures.script)),
        Row("the completion alone (in serve, Ansible and script)", in_seconds(figures.completion)),
        Row("node snapshot on a host, wall", in_seconds(figures.host_seconds),
            "≤ 0.5 s", seconds <= 0.5),
        Row("node snapshot on a host, largest process", f"{size:.0f} MB", "≤ 60 MB", size <= 60),
        Row("doctor on a rig that serves, wall", in_seconds(figures.doctor),
            "≤ 1.5 s", median(figures.doctor) <= 1.5),
        Row("restart, until a real answer, wall", in_seconds(figures.restart)),
        Row("the same by hand: systemctl stop and start, until an answer",
            in_seconds(figures.by_hand)),
        Row("restart's own part", in_seconds(overhead), "≤ 6 s", median(overhead) <= 6),
    ]  # fmt: skip


def table(listed: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| what | median (min to max) | target | |", "|---|---|---|---|"]
    for row in listed:
        met = "" if row.met is None else "met" if row.met else "NOT MET"
        lines.append(f"| {row.what} | {row.measured} | {row.target} | {met} |")
    return "\n".join(lines) + "\n"


def document(listed: Sequence[Row], rounds: int, versions: str, machine: str) -> str:
    """The section about a rig that is as it should be."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"""Measured {day} on {machine}, serving the `tiny` recipe
({versions}). {rounds} rounds; every measurement once a round, one after the other. Run again on a
lab that serves: `python -m tests.bench rig`.

{table(listed)}
{SPREAD}

The hosts share their cores with the operator's side, so both hosts' work and the command line
compete; on a real rig B and C do not cost the operator's processor.

- serve: `pyinfra INVENTORY deploys/serve.py -y` on a rig that already is as the recipe says. Each
  ssh channel that runs a command or opens SFTP is counted (tests/bench/count_execs.py). The run
  ends with a real chat completion, which A + B + C does not hold. Python may keep the bytecode of
  what is imported, as it does by default; PYTHONDONTWRITEBYTECODE costs 0.1 s more.
- Ansible: the same twenty checks as idiomatic tasks (tests/bench/rig.py), pipelining on, five
  forks, ControlPersist on, connections cold at the start as for the others. Every task must end ok
  and unchanged. Once as a play is by default, and once without fact gathering and with the
  interpreter named, since no check needs either.
- What binds serve is what it cannot do without: A, B, C and the completion. Where they took 1.25 s
  and Ansible 9.25 (2026-11-26), no more than 7.4 times was to be had.
- A is `pyinfra INVENTORY debug-inventory`. B and C ask both hosts at the same time, as serve does.
- The script is one `sh` a host with the same checks, over new connections, both hosts at once.
- node snapshot on a host: the worst host, as root there, with what serve asks for; the largest of
  its processes by getrusage.
- restart against by hand: both end with the first completion; the engine's own stop (its container
  gets 10 s and more) and start are in both.
- What binds the doctor: of 1.9 s, timed step by step on 2026-11-26 with the engine running, 0.43 s
  are the start of the command line, 0.55 s the imports while ssh connects, 0.8 s the hosts'
  answers, 0.15 s the rest. On one host alone the six reports take 0.45 s, 0.11 s of it to compile
  the program that is sent; here two hosts and the engine share two cores.
- What binds restart's own part: of a run of 54.7 s, timed by its lines on the same day, 1.9 s
  passed before the stop; orphans, /dev/shm and the page cache took 0.9 s; between the first answer
  and COMMITTED lay 3.1 s: the unit's own completion, the operator's next look at it, a second
  completion, and the commit on both nodes.
- That nothing was changed is checked: containers, files and journal are compared before and after.
"""


def in_seconds(values: Sequence[float]) -> str:
    """The median in seconds, with the lowest and the highest of the rounds."""
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One by the other, a value a round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def in_times(values: Sequence[float], word: str = "") -> str:
    """The median of ratios, with the lowest and the highest of the rounds."""
    middle = f"{median(values):.2f} times {word}".strip()
    return f"{middle} ({min(values):.2f} to {max(values):.2f})"


def in_rate(values: Sequence[float]) -> str:
    """The median of bytes a second as MB/s, with the lowest and the highest of the rounds."""
    low, middle, high = (each / MB for each in (min(values), median(values), max(values)))
    return f"{middle:.0f} MB/s ({low:.0f} to {high:.0f})"


def in_share(values: Sequence[float]) -> str:
    """The median of shares in percent, with the lowest and the highest of the rounds."""
    low, middle, high = (100 * each for each in (min(values), median(values), max(values)))
    return f"{middle:.0f} % ({low:.0f} to {high:.0f})"


# docs/benchmarks.md: a section a part, so that one part can be measured again by itself.

TITLE = "# Benchmarks\n"
_CPU = re.compile(r"^model name\s*: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A measured part: its heading, its text with the table in it, its rows."""

    title: str
    text: str
    rows: Sequence[Row]

    @property
    def missed(self) -> list[str]:
        """The targets that are not met."""
        return [row.what for row in self.rows if row.met is False]


def machine() -> str:
    """This machine, as the reader of the figures needs it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    found = _CPU.search(Path("/proc/cpuinfo").read_text())
    cpu = f" ({found[1].strip()})" if found else ""
    # Other work on those cores stretches what runs next to it; the reader has to know.
    load = f"load average {os.getloadavg()[0]:.1f} before"
    return f"a VM of {os.cpu_count()} cores{cpu} and {memory:.0f} GiB, {load}"


def today() -> str:
    """The date of the figures."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def write(path: Path, part: Part) -> None:
    """Puts a part's section into the page, in place of the one that it had."""
    text = path.read_text() if path.exists() else TITLE
    before, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    new = f"{part.title}\n\n{part.text.strip()}\n\n"
    kept = [new if one.startswith(f"{part.title}\n") else one for one in sections]
    kept += [] if new in kept else [new]
    whole = before.strip() + "\n\n" + "".join(f"## {one.strip()}\n\n" for one in kept)
    path.write_text(whole.rstrip() + "\n")


# The twenty checks, each as an idiomatic Ansible task and as one line of shell.

# What starts the engine; serve looks at its other files as well.
ENGINE_FILES = (SCRIPT_PATH, ENV_PATH, UNIT_PATH)
STATE_DIR = "/var/lib/rigbook"
DOCKER_DIR = "/var/lib/docker"
MIN_AVAILABLE_KIB = 512 * 1024
MIN_ROOM_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Check:
    """One check that changes nothing: its name, its task, its line of shell ("" for none)."""

    name: str
    task: Mapping[str, object]
    shell: str


def checks(plan: Plan, node: Node) -> list[Check]:
    """The twenty checks of one node. The tasks are the same on all nodes: what differs there is a
    variable (`host_vars`). The completion is asked once, from here, so it has no line of shell."""
    return [
        *_files(plan, node),
        *_supervision(plan),
        *_ports(plan, node),
        *_fabric(plan, node),
        *_room(plan, node),
        _completion(plan),
    ]


def host_vars(plan: Plan, node: Node) -> dict[str, object]:
    """What differs between the nodes, as variables of the tasks."""
    return {
        "is_head": node.role == "head",
        "lan_address": str(node.lan_address),
        "peer": _peer(plan, node),
        "weights": plan.specs[node.name].weights,
    }


def _peer(plan: Plan, node: Node) -> str:
    """The fabric address of the node's first peer."""
    return next(str(n.fabric_address) for n in plan.rig.nodes if n.name != node.name)


def _files(plan: Plan, node: Node) -> list[Check]:
    found = []
    for document in plan.documents[node.name]:
        if document.path not in ENGINE_FILES:
            continue
        name = document.path.rpartition("/")[2]
        copy = {
            "src": f"{{{{ inventory_hostname }}}}/{name}",
            "dest": document.path,
            "owner": "root",
            "group": "root",
            "mode": document.mode,
        }
        wanted = shlex.quote(document.content)
        attributes = f"{int(document.mode, 8):o} root root"
        shell = (
            f"printf %s {wanted} | cmp -s - {document.path} && "
            f'test "$(stat -c "%a %U %G" {document.path})" = "{attributes}"'
        )
        # check_mode: where the file differs, the task says so and the host stays as it is.
        task = {"ansible.builtin.copy": copy, "check_mode": True}
        found.append(Check(f"file {name}", task, shell))
    return found


def _supervision(plan: Plan) -> list[Check]:
    assert plan.recipe.container is not None
    image = plan.recipe.container.image

    def service(name: str) -> dict[str, object]:
        wanted = {"name": name, "enabled": True, "state": "started"}
        return {"ansible.builtin.systemd_service": wanted, "check_mode": True}

    running = "(seen.stdout | from_json)[0].State.Running"
    policy = "(seen.stdout | from_json)[0].HostConfig.RestartPolicy.Name"
    show = "docker inspect -f '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}'"
    return [
        Check(
            "engine unit enabled and started",
            service(UNIT),
            f"systemctl is-enabled -q {UNIT} && systemctl is-active -q {UNIT}",
        ),
        Check(
            "docker enabled and started",
            service("docker.service"),
            "systemctl is-enabled -q docker.service && systemctl is-active -q docker.service",
        ),
        Check(
            "no daemon-reload pending",
            _command(
                ["systemctl", "show", "-p", "NeedDaemonReload", UNIT], "'=no' not in seen.stdout"
            ),
            f"test $(systemctl show -p NeedDaemonReload {UNIT}) = NeedDaemonReload=no",
        ),
        Check(
            "image present",
            _command(["docker", "image", "inspect", image], "seen.rc != 0"),
            f"docker image inspect {image}",
        ),
        Check(
            "container runs, restart policy no",
            _command(["docker", "inspect", CONTAINER], f"not {running} or {policy} != 'no'"),
            f"test \"$({show} {CONTAINER})\" = 'true no'",
        ),
        Check(
            "engine process lives",
            _command(["docker", "top", CONTAINER, "-eo", "pid,args"], "'serve' not in seen.stdout"),
            f"docker top {CONTAINER} -eo pid,args | grep -q serve",
        ),
    ]


def _ports(plan: Plan, node: Node) -> list[Check]:
    is_head = node.role == "head"
    port = plan.recipe.port
    rendezvous = plan.recipe.multi_node.master_port if plan.recipe.multi_node else port
    wait = {
        "host": "{{ lan_address }}",
        "port": port,
        "state": "{{ 'started' if is_head else 'stopped' }}",
        "timeout": 5,
    }
    listens = ["ss", "-Hltn", f"sport = :{rendezvous}"]
    return [
        Check("API port", {"ansible.builtin.wait_for": wait}, _port(port, is_head)),
        Check(
            # ss and not a connection: the rendezvous is the engine's own.
            "rendezvous port",
            _command(listens, "(seen.stdout | length > 0) != is_head"),
            _port(rendezvous, is_head),
        ),
    ]


def _port(port: int, wanted: bool) -> str:
    return f"test {'-n' if wanted else '-z'} \"$(ss -Hltn 'sport = :{port}')\""


def _fabric(plan: Plan, node: Node) -> list[Check]:
    fabric = plan.rig.fabric
    device = node.fabric_device
    assert fabric is not None and device is not None, "the bench compares runs on two nodes"
    mtu, peer = fabric.mtu, _peer(plan, node)
    ping = ["ping", "-q", "-c", "1", "-W", "2", "-M", "do", "-s", str(mtu - PING_OVERHEAD)]
    ping += ["-I", device]
    link = "(seen.stdout | from_json)[0]"
    return [
        Check(
            "fabric link up, MTU",
            _command(
                ["ip", "-j", "link", "show", "dev", device],
                f"{link}.mtu != {mtu} or {link}.operstate not in ['UP', 'UNKNOWN']",
            ),
            f"test $(cat /sys/class/net/{device}/mtu) = {mtu} && "
            f"grep -Eq 'up|unknown' /sys/class/net/{device}/operstate",
        ),
        Check(
            "fabric route",
            _command(["ip", "-j", "route", "get", "{{ peer }}"], f"{link}.dev != '{device}'"),
            f"ip route get {peer} | grep -q 'dev {device} '",
        ),
        Check(
            "full-size ping",
            _command([*ping, "{{ peer }}"], "seen.rc != 0"),
            shlex.join([*ping, peer]),
        ),
    ]


def _room(plan: Plan, node: Node) -> list[Check]:
    weights = plan.specs[node.name].weights
    number = r"regex_search('MemAvailable:\s+(\d+)', '\\1') | first | int"
    return [
        Check(
            "memory available",
            {
                "ansible.builtin.slurp": {"src": "/proc/meminfo"},
                "register": "seen",
                "failed_when": f"(seen.content | b64decode | {number}) < {MIN_AVAILABLE_KIB}",
            },
            f"awk '/^MemAvailable/ {{exit $2 < {MIN_AVAILABLE_KIB}}}' /proc/meminfo",
        ),
        Check(
            "disk room",
            _command(
                ["df", "--output=avail", "-B1", DOCKER_DIR],
                f"(seen.stdout_lines[-1] | int) < {MIN_ROOM_BYTES}",
            ),
            f"test $(df --output=avail -B1 {DOCKER_DIR} | tail -n 1) -ge {MIN_ROOM_BYTES}",
        ),
        Check(
            "shared memory",
            {"ansible.builtin.find": {"paths": "/dev/shm", "patterns": "psm_*,sem.mp-*"}},
            "ls /dev/shm",
        ),
        Check("journal folder", _stat(STATE_DIR), f"test -d {STATE_DIR}"),
        Check("weights", _stat("{{ weights }}"), f"test -d {shlex.quote(weights)}"),
    ]


def _command(argv: list[str], failed_when: str) -> dict[str, object]:
    """A task that only reads."""
    return {
        "ansible.builtin.command": {"argv": argv},
        "register": "seen",
        "changed_when": False,
        "failed_when": failed_when,
    }


def _stat(path: str) -> dict[str, object]:
    stat = {"path": path, "get_checksum": False}
    failed = "not seen.stat.exists or not seen.stat.isdir"
    return {"ansible.builtin.stat": stat, "register": "seen", "failed_when": failed}


def _completion(plan: Plan) -> Check:
    """The same question as serve's, so that both wait for the same number of tokens."""
    where = endpoint(plan)
    message = {"role": "user", "content": PROMPT}
    uri = {
        "url": f"{where.base_url}/v1/chat/completions",
        "method": "POST",
        "body_format": "json",
        "body": {"model": where.model, "messages": [message], "max_tokens": MAX_TOKENS},
        "timeout": 60,
    }
    failed = "not seen.json.choices[0].message.content"
    here = {"delegate_to": "localhost", "become": False, "run_once": True}
    task = {"ansible.builtin.uri": uri, "register": "seen", "failed_when": failed, **here}
    return Check("a real completion", task, "")


# What is measured: each function does one thing once and gives its figures.

RUN_TIMEOUT_S = 180
RESTART_TIMEOUT_S = 600
# Runs on the host: the command comes on stdin, its wall time and its largest process go back.
_PROBE = """\
import json, resource, subprocess, sys, time
command = sys.stdin.read()
started = time.monotonic()
subprocess.run(["sh", "-c", command], stdout=subprocess.DEVNULL, check=True)
took = time.monotonic() - started
print(json.dumps([took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))
"""


class Bench:
    """The rig under measurement. Every measurement raises RuntimeError when it did not work."""

    def __init__(self, rig: Rig, connections: Connections) -> None:
        self._rig = rig
        self._connections = connections
        self._names = [node.name for node in rig.plan.rig.nodes]

    def serve(self) -> tuple[float, dict[str, int]]:
        """A serve run: its seconds, and its remote commands by node."""
        counts = self._connections.folder / "counts.json"
        data = [word for pair in self._rig.pairs for word in ("--data", pair)]
        arguments = [self._rig.inventory, "deploys/serve.py", "-y", *data]
        command = [sys.executable, "-m", "tests.bench.count_execs", str(counts), *arguments]
        seconds = timed(lambda: _run(command))
        by_address = json.loads(Path(counts).read_text())
        asked = {n: by_address.get(self._connections.target(n), 0) for n in self._names}
        if not all(asked.values()):
            raise RuntimeError(f"serve asked a node nothing: {asked}; the count is wrong")
        return seconds, asked

    def doctor(self) -> float:
        """Seconds of a doctor's run on a rig that serves; RuntimeError when it finds something."""
        program = str(Path(sys.executable).parent / "pyinfra")
        data = [word for pair in self._rig.pairs for word in ("--data", pair)]
        return timed(lambda: _run([program, self._rig.inventory, "deploys/doctor.py", "-y", *data]))

    def restart(self) -> float:
        """Seconds of deploys/restart.py: gates, stop, reap, shm, caches, start, a real answer."""
        program = str(Path(sys.executable).parent / "pyinfra")
        data = [word for pair in self._rig.pairs for word in ("--data", pair)]
        command = [program, self._rig.inventory, "deploys/restart.py", "-y", *data]
        return timed(lambda: _run(command, timeout_s=RESTART_TIMEOUT_S))

    def by_hand(self) -> float:
        """Seconds of the bare minimum: systemctl stop head, workers; start workers, head; answer.

        The engine's own part of a restart, with nobody looking.
        """
        head = self._rig.plan.rig.head.name
        workers = [node.name for node in self._rig.plan.rig.workers]

        def all_of_it() -> None:
            for verb, order in (("stop", [head, *workers]), ("start --no-block", [*workers, head])):
                for name in order:
                    self._ssh(name, f"sudo systemctl {verb} {UNIT}")
            deadline = time.monotonic() + RESTART_TIMEOUT_S
            while not ask(endpoint(self._rig.plan), 60.0).ok:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no completion in {RESTART_TIMEOUT_S} s after systemctl")
                time.sleep(1)

        return timed(all_of_it)

    def cli_start(self) -> float:
        """Seconds of pyinfra's start: Python, pyinfra, config.py, inventory, group_data."""
        program = str(Path(sys.executable).parent / "pyinfra")
        return timed(lambda: _run([program, self._rig.inventory, "debug-inventory"]))

    def connect(self) -> float:
        """Seconds until a new ssh connection to every node, at the same time, has run `true`."""
        return timed(lambda: self._everywhere(lambda name: self._ssh(name, "true")))

    def snapshot(self) -> float:
        """Seconds for one snapshot of every node, at the same time, over open connections."""

        def look(name: str) -> None:
            request = self._rig.plan.requests[name].model_dump_json()
            done = self._connections.host(name).run(Snapshot().command(request))
            if done.rc != 0:
                raise RuntimeError(f"{name}: {done.stderr[-500:]}")

        return timed(lambda: self._everywhere(look))

    def script(self) -> float:
        """Seconds for one script with the same checks a node, over new connections."""

        def check(name: str) -> None:
            listed = checks(self._rig.plan, self._rig.plan.rig.node(name))
            lines = [c for c in listed if c.shell]
            # stdin is the script itself: no check may read from it.
            text = "".join(
                f"{{ {c.shell}; }} </dev/null >&2 || exit {i}\n" for i, c in enumerate(lines, 1)
            )
            done = self._ssh(name, "sudo sh -s", text, check=False)
            if done.returncode:
                what = lines[done.returncode - 1].name if done.returncode <= len(lines) else "ssh"
                raise RuntimeError(f"script on {name}: {what}: {done.stderr[-500:]}")

        def whole() -> None:
            self._everywhere(check)
            self.completion()

        return timed(whole)

    def completion(self) -> float:
        """Seconds for one real chat completion."""
        answer = ask(endpoint(self._rig.plan), 60.0)
        if not answer.ok:
            raise RuntimeError(f"no completion: {answer.detail}")
        return answer.seconds

    def on_host(self) -> tuple[float, int]:
        """Of one snapshot on the host itself, the worst node's: seconds, bytes of its largest
        process."""
        found = []
        for name in self._names:
            request = self._rig.plan.requests[name].model_dump_json()
            probe = f"sudo python3 -c '{_PROBE}'"
            done = self._ssh(name, probe, Snapshot().command(request))
            took, size = json.loads(done.stdout.splitlines()[-1])
            found.append((took, size))
        return max(took for took, _ in found), max(size for _, size in found)

    def _ssh(
        self, name: str, command: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A command over a connection of its own."""
        config = str(self._connections.config(name))
        alone = ["ssh", "-F", config, "-o", "ControlMaster=no", "-o", "ControlPath=none"]
        return _run([*alone, self._connections.target(name), command], stdin, check)

    def _everywhere(self, work: Callable[[str], object]) -> None:
        with ThreadPoolExecutor(len(self._names)) as pool:
            list(pool.map(work, self._names))


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of `work`."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _run(
    command: list[str], stdin: str = "", check: bool = True, timeout_s: int = RUN_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """A command in the project's root; RuntimeError with its last lines when it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        said = f"{done.stdout}{done.stderr}"[-2000:]
        raise RuntimeError(f"{' '.join(command)[:200]}: exit status {done.returncode}: {said}")
    return done


# The twenty checks as an Ansible run, with everything that Ansible writes in temporary folders.

# On the hosts; Ansible makes it there, the bench removes it.
REMOTE_TMP = "/tmp/rigbook-bench-ansible"
TIMEOUT_S = 180


class AnsibleRun:
    """A playbook of twenty tasks that change nothing: pipelining, five forks, ControlPersist."""

    def __init__(self, rig: Rig, connections: Connections) -> None:
        self._rig = rig
        self._connections = connections
        self._folder = Path(tempfile.mkdtemp(prefix="rigbook-", dir="/tmp"))
        plan = rig.plan
        hosts = {node.name: self._host(plan, node.name) for node in plan.rig.nodes}
        # Of its own and empty: an ansible.cfg of the operator's must not slip in.
        (self._folder / "ansible.cfg").write_text("")
        self._write("inventory.yaml", {"all": {"hosts": hosts}})
        tasks = [{"name": c.name, **c.task} for c in checks(plan, plan.rig.head)]
        self._write("playbook.yaml", [{"hosts": "all", "become": True, "tasks": tasks}])

    def _host(self, plan: Plan, name: str) -> dict[str, object]:
        """A host's variables; its files go where the copy tasks find them."""
        (self._folder / name).mkdir()
        for document in plan.documents[name]:
            file = self._folder / name / document.path.rpartition("/")[2]
            file.write_text(document.content)
        return {
            "ansible_host": self._connections.target(name),
            "ansible_ssh_common_args": f"-F {self._connections.config(name)}",
            "ansible_remote_tmp": REMOTE_TMP,
            **host_vars(plan, plan.rig.node(name)),
        }

    def _write(self, name: str, document: object) -> None:
        (self._folder / name).write_text(yaml.safe_dump(document, sort_keys=False))

    def run(self, tuned: bool) -> None:
        """One run from a cold connection; RuntimeError unless every task was ok and unchanged.

        `tuned`: without fact gathering and with the interpreter named, which no check needs.
        """
        sockets = Path(tempfile.mkdtemp(prefix="rigbook-", dir="/tmp"))
        environ = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self._folder / "ansible.cfg"),
            "ANSIBLE_HOME": str(self._folder),
            "ANSIBLE_LOCAL_TEMP": str(self._folder / "tmp"),
            # For the task that runs here; the hosts have a variable of their own.
            "ANSIBLE_REMOTE_TMP": str(self._folder / "tmp"),
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_FORKS": "5",
            "ANSIBLE_GATHERING": "explicit" if tuned else "implicit",
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
            "ANSIBLE_SSH_CONTROL_PATH": f"{sockets}/%%C",
            "ANSIBLE_NOCOLOR": "1",
        }
        extra = ["-e", "ansible_python_interpreter=/usr/bin/python3"] if tuned else []
        program = Path(sys.executable).parent / "ansible-playbook"
        command = [str(program), "-i", "inventory.yaml", "playbook.yaml", *extra]
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=environ,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        finally:
            self._end_masters(sockets)
        recap = re.findall(r"^(\S+) +: ok=(\d+) +changed=(\d+)", done.stdout, re.M)
        # The completion runs once, on the first host.
        if (
            done.returncode != 0
            or len(recap) != len(self._rig.hosts)
            or any(changed != "0" or int(ok) < 19 for _, ok, changed in recap)
        ):
            raise RuntimeError(f"ansible-playbook: {done.stdout[-3000:]}{done.stderr[-1000:]}")

    def _end_masters(self, sockets: Path) -> None:
        for socket in sockets.iterdir():
            command = ["ssh", "-F", "/dev/null", "-S", str(socket), "-O", "exit", "any"]
            subprocess.run(command, capture_output=True, timeout=10, check=False)
        shutil.rmtree(sockets)

    def close(self) -> None:
        """Removes what Ansible wrote, here and on the hosts."""
        for name in self._rig.hosts:
            self._connections.host(name).run("rm -rf -- %s", REMOTE_TMP)
        shutil.rmtree(self._folder)


State = Mapping[str, Mapping[str, object]]


def state_of(rig: Rig, connections: Connections) -> State:
    """What a change would change on each node; RuntimeError when a node is not as planned."""
    found: dict[str, dict[str, object]] = {}
    for name, seen in observe(rig, connections).snapshots.items():
        if isinstance(seen, Unreadable):
            raise RuntimeError(f"{name}: {seen.unreadable}")
        differences = [d.text for d in drift(rig.plan, rig.plan.rig.node(name), seen)]
        container = own_container(seen)
        if container is None or container.state != "running":
            differences.append("the engine's container does not run")
        if differences:
            serve = f"pyinfra {rig.inventory} deploys/serve.py -y"
            raise RuntimeError(f"{name}: {differences[0]}; bring it up first: {serve}")
        found[name] = {
            "container": container,
            "files": seen.files,
            "journal": seen.journal,
            # Not the time of the start: the host computes it anew each time, to the microsecond.
            "restarts": [unit.restarts for unit in known_units(seen)],
        }
    return found


def known_units(seen: NodeSnapshot) -> tuple[Unit, ...]:
    """The units of a snapshot; none where systemd was not read, which drift names."""
    return seen.units if isinstance(seen.units, tuple) else ()


def different(before: State, after: State) -> str:
    """The first thing that is not what it was, with both values; empty when all is the same."""
    for name, parts in before.items():
        for part, value in parts.items():
            if after[name][part] != value:
                return f"{part} of {name}: {value!s:.300} became {after[name][part]!s:.300}"
    return ""


def measured(rig: Rig, connections: Connections, rounds: int) -> Figures:
    """All figures, interleaved, so that a busy minute of the machine meets all of them."""
    bench, figures = Bench(rig, connections), Figures()
    ansible = AnsibleRun(rig, connections)
    try:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", flush=True)
            # Before each: serve would mend what somebody changed meanwhile.
            state_of(rig, connections)
            seconds, commands = bench.serve()
            figures.serve.append(seconds)
            figures.commands.append(max(commands.values()))
            figures.cli_start.append(bench.cli_start())
            figures.connect.append(bench.connect())
            figures.snapshot.append(bench.snapshot())
            figures.ansible.append(timed(lambda: ansible.run(tuned=False)))
            figures.tuned.append(timed(lambda: ansible.run(tuned=True)))
            figures.script.append(bench.script())
            figures.completion.append(bench.completion())
            on_host, size = bench.on_host()
            figures.doctor.append(bench.doctor())
            figures.host_seconds.append(on_host)
            figures.host_bytes.append(size)
    finally:
        ansible.close()
    return figures


def restarted(bench: Bench, figures: Figures, rounds: int) -> None:
    """The restarts, which do change the rig: it serves again at the end."""
    for number in range(1, rounds + 1):
        print(f"restart {number} of {rounds}", flush=True)
        figures.by_hand.append(bench.by_hand())
        figures.restart.append(bench.restart())


def part(inventory: str, pairs: list[str], rounds: int) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when not measured."""
    try:
        rig = load_rig(inventory, pairs)
        connections = Connections(rig)
    except SpecError as error:
        raise RuntimeError(str(error)) from None
    where = f"{machine()}, two nspawn hosts"
    try:
        before = state_of(rig, connections)
        figures = measured(rig, connections, rounds)
        changed = different(before, state_of(rig, connections))
        if changed:
            raise RuntimeError(f"the rig is not what it was before: {changed}")
        restarted(Bench(rig, connections), figures, rounds)
    finally:
        connections.close()
    listed = rows(figures)
    used = ", ".join(f"{name} {version(name)}" for name in ("pyinfra", "ansible-core"))
    versions = f"Python {sys.version.split()[0]}, {used}"
    return Part("A rig that is as it should be", document(listed, rounds, versions, where), listed)
