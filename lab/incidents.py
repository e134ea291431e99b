"""The incidents of docs/incidents.md and how each breaks the twin."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import engine
from lab.core import ENGINE_VERSION, LabError
from lab.engine import BROKEN_VERSION, OTHER_VERSION
from lab.host import Hosts

# What breaks a rig by hand. Each takes the hosts and names of them; the engine serves before.

ROOT = Path(__file__).resolve().parents[1]
PYINFRA = Path(sys.executable).parent / "pyinfra"
ENGINE = "rigbook-engine.service"
UNIT_FILE = f"/etc/systemd/system/{ENGINE}"
SCRIPT = "/etc/rigbook/engine/serve.sh"
ENVIRONMENT = "/etc/rigbook/engine/engine.env"
DROP_IN = f"/etc/systemd/system/{ENGINE}.d/50-ghost.conf"
GHOST = "/workspace/vllm-head-090.sh"
DEPLOY_S = 1800
OLD_UNIT = "vllm-old.service"
DISK = "/mnt/second"
WHEELS_NOTE = "/etc/rigbook-lab/wheels"
SEGMENT = "psm_0badcafe"
# A labelled stand-in engine: the title and the port of an orphan worker, no model.
ORPHAN = (
    "exec -a {title} python3 -c 'import socket, time; s = socket.socket(); "
    's.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("", {port})); '
    "s.listen(); time.sleep(86400)'"
)


def stop_breaks(hosts: Hosts, names: Sequence[str]) -> None:
    """The engine's units down, the last first, and nobody who starts them again."""
    for name in reversed(names):
        hosts.ssh(name, "sudo systemctl stop rigbook-pair.timer", check=False)
        hosts.ssh(name, f"sudo systemctl stop {ENGINE}")


def orphan(hosts: Hosts, host: str, port: int = 29501, title: str = "VLLM::Worker_TP1") -> None:
    """Leaves a stand-in engine behind on a host: its shell is gone, and its login."""
    inner = ORPHAN.format(title=title, port=port)
    command = f"setsid -f bash -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1"
    hosts.ssh(host, f"sudo bash -c {shlex.quote(command)}")
    time.sleep(1)


def stale_segment(hosts: Hosts, host: str, name: str = SEGMENT) -> None:
    """A shared memory segment of an engine that died ten minutes ago."""
    path = f"/dev/shm/{name}"
    hosts.ssh(host, f"sudo truncate -s 4M {path} && sudo touch -d -10min {path}")


def ghost_drop_in(hosts: Hosts, host: str) -> None:
    """A drop-in over our unit that starts a script that is nowhere."""
    text = f"[Service]\nExecStart=\nExecStart={GHOST}\n"
    hosts.ssh(host, f"sudo mkdir -p {DROP_IN.rpartition('/')[0]}")
    hosts.ssh(host, f"printf %s {shlex.quote(text)} | sudo tee {DROP_IN}")
    hosts.ssh(host, "sudo systemctl daemon-reload")


def relaunch(hosts: Hosts, name: str, edit: str) -> None:
    """A hand's edit (sed) of a launch script, and the unit started again."""
    hosts.ssh(name, f"sudo sed -i {shlex.quote(edit)} {SCRIPT}")
    hosts.ssh(name, f"sudo systemctl restart --no-block {ENGINE}")


def with_flag(flag: str, value: int) -> str:
    """The edit of a launch script that gives a flag this value."""
    return rf"s/\(--{flag}\) [0-9]*/\1 {value}/"


def drift(hosts: Hosts, names: Sequence[str]) -> None:
    """All nodes launched by hand with half the length and the fork variable (C14)."""
    for name in reversed(names):
        script = hosts.ssh(name, f"sudo cat {SCRIPT}")
        length = int(script.partition("--max-model-len ")[2].split()[0])
        hosts.ssh(name, "echo VLLM_WORKER_MULTIPROC_METHOD=fork | "
                        f"sudo tee -a {ENVIRONMENT} >/dev/null")  # fmt: skip
        relaunch(hosts, name, with_flag("max-model-len", length // 2))


def ghost_of_our_unit(hosts: Hosts, host: str) -> None:
    """Our unit's own file starts a script that is nowhere: 127 at each start."""
    edit = f"s#^ExecStart=[^ ]*#ExecStart=/bin/bash {GHOST}#"
    hosts.ssh(host, f"sudo sed -i {shlex.quote(edit)} {UNIT_FILE}")
    hosts.ssh(host, f"sudo systemctl daemon-reload; sudo systemctl start --no-block {ENGINE}")


def disable(hosts: Hosts, names: Sequence[str]) -> None:
    """Stopped and disabled everywhere, as before a move that nobody finished."""
    stop_breaks(hosts, names)
    for name in names:
        hosts.ssh(name, f"sudo systemctl disable {ENGINE} rigbook-pair.timer", check=False)


def freeze(hosts: Hosts, host: str) -> None:
    """The engine's processes on a host stop where they are (SIGSTOP), the server aside."""
    found = hosts.ssh(host, "pgrep '^VLLM::'", check=False).split()
    if not found:
        raise LabError(f"{host}: no engine process to stop")
    hosts.ssh(host, f"sudo kill -STOP {' '.join(found)}")


def lose_quotes(hosts: Hosts, host: str) -> None:
    """A JSON flag of the launch script loses its quotes on the way through a shell (C7)."""
    relaunch(hosts, host, 's/.{"temperature":0}./{temperature:0}/')


def weights_of_another_loader(hosts: Hosts, host: str, path: str, user: str) -> None:
    """A model's file of another loader, in the place of this one's."""
    file = f"{path}/model.safetensors"
    hosts.ssh(
        host,
        f"sudo sh -c 'printf GGUF > {file} && truncate -s 2M {file} && chown {user}: {file}'",
    )


def file_of_another_revision(hosts: Hosts, host: str, path: str) -> None:
    """The end of a shard is another revision's: the size and the header are the same (D17)."""
    file = shlex.quote(f"{path}/model.safetensors")
    text = f"size=$(stat -c %s {file}); printf other | dd of={file} bs=1 seek=$((size - 5)) " \
           "conv=notrunc status=none"  # fmt: skip
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def old_unit(hosts: Hosts, host: str) -> None:
    """A unit that starts another engine at the next boot, stopped now (D15)."""
    unit = "[Service]\nExecStart=/bin/sleep infinity\nExecStartPre=/bin/echo vllm serve\n" \
           "[Install]\nWantedBy=multi-user.target\n"  # fmt: skip
    hosts.ssh(host, f"sudo tee /etc/systemd/system/{OLD_UNIT}", stdin=unit)
    hosts.ssh(host, f"sudo systemctl daemon-reload && sudo systemctl enable -q {OLD_UNIT}")


def no_old_unit(hosts: Hosts, host: str) -> None:
    """That unit's file away."""
    hosts.ssh(host, f"sudo rm /etc/systemd/system/{OLD_UNIT} && sudo systemctl daemon-reload")


def rebuilt_image(hosts: Hosts, host: str, image: str) -> None:
    """Another build under the image's name on one host alone."""
    quoted = shlex.quote(image)
    hosts.ssh(
        host,
        f"id=$(sudo docker create {quoted} true) && "
        f"sudo docker commit --change 'LABEL built=here' $id {quoted} && sudo docker rm $id",
    )


def image_of_other_files(hosts: Hosts, host: str, image: str, texts: Mapping[str, str]) -> None:
    """Another build under the image's name on one host alone, with these files in it."""
    hosts.ssh(host, f"sudo sh -c {shlex.quote(engine.stand_in_command(image, texts))}")


def run_deploy(inventory: str, deploy: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A runbook on the twin, as the operator would type it."""
    return subprocess.run(
        [str(PYINFRA), inventory, f"deploys/{deploy}.py", *arguments, "-y"], cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=DEPLOY_S, check=False,
    )  # fmt: skip


def backed_up(inventory: str, *arguments: str) -> None:
    """A backup as of every night; LabError where it fails."""
    done = run_deploy(inventory, "backup", *arguments)
    if done.returncode != 0:
        raise LabError(f"no backup could be made:\n{done.stdout}")


def pip_install(hosts: Hosts, host: str, venv: Mapping[str, str], version: str) -> None:
    """Another version of the engine, installed into the venv that serves, and started."""
    path = shlex.quote(venv["path"])
    hosts.ssh(host, f"sudo -u $(stat -Lc %U {path}) {path}/bin/python -m pip install --quiet "
                    f"--no-index --no-deps --find-links={shlex.quote(venv['wheels'])} "
                    f"vllm=={version}")  # fmt: skip
    hosts.ssh(host, f"sudo systemctl restart --no-block {ENGINE}")


def lose_wheel(hosts: Hosts, host: str, wheels: str, version: str) -> None:
    """The folder of wheels without one version's; `find_wheel` puts the lab's own back."""
    text = (
        f"mkdir -p {WHEELS_NOTE.rpartition('/')[0]}; readlink -f {wheels} > {WHEELS_NOTE}; "
        f'rm {wheels}; mkdir {wheels}; for f in $(cat {WHEELS_NOTE})/*; do case "$f" in '
        f"*/vllm-{version}*) ;; *) ln -s $f {wheels}/;; esac; done"
    )
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def find_wheel(hosts: Hosts, host: str, wheels: str) -> None:
    """The folder of wheels as the lab has it."""
    text = f"rm -rf {wheels} && ln -s $(cat {WHEELS_NOTE}) {wheels}"
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def second_disk(hosts: Hosts, host: str) -> None:
    """Another disk (a tmpfs stands in for it), mounted."""
    text = f"mkdir -p {DISK} && mount -t tmpfs -o size=6g,mode=0755 tmpfs {DISK}"
    hosts.ssh(host, f"mountpoint -q {DISK} || sudo sh -c {shlex.quote(text)}")


def no_second_disk(hosts: Hosts, host: str) -> None:
    """That disk away again."""
    hosts.ssh(host, f"sudo umount {DISK}")


def lose_disk(hosts: Hosts, host: str, venv: str) -> None:
    """What lay on the engine's own disk is gone: the venv, the backups, the journal (D18)."""
    text = f"rm -rf $(readlink -f {venv}) /var/lib/rigbook"
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def lost_program(hosts: Hosts, host: str, venv: str) -> None:
    """`pip uninstall` took the engine's program with it; the unit ends with 127 (B3)."""
    hosts.ssh(host, f"sudo rm {shlex.quote(venv)}/bin/vllm")
    hosts.ssh(host, f"sudo systemctl reset-failed {ENGINE}", check=False)
    hosts.ssh(host, f"sudo systemctl start --no-block {ENGINE}", check=False)


def head_was_started(hosts: Hosts, head: str, known: set[str]) -> bool:
    """Whether a change that is not among `known` has started the head."""
    newest = hosts.changes(head)[0]
    return str(newest["id"]) not in known and any(
        step["op"] == "unit" and step["active"] == "start" for step in newest["steps"]
    )


def killed_operator(
    hosts: Hosts, head: str, inventory: str, deploy: str, *arguments: str, budget_s: float = 900
) -> str:
    """The id of a change whose operator was killed -9 once the head had been started."""
    known = {str(change["id"]) for change in hosts.changes(head)}
    operator = subprocess.Popen(
        [str(PYINFRA), inventory, f"deploys/{deploy}.py", *arguments, "-y"], cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    began = time.monotonic()
    try:
        while not head_was_started(hosts, head, known):
            if time.monotonic() - began > budget_s or operator.poll() is not None:
                raise LabError(f"{deploy} did not start the head of {inventory}")
            time.sleep(1)
    finally:
        os.kill(operator.pid, signal.SIGKILL)
        operator.wait()
    return str(hosts.changes(head)[0]["id"])


# The incidents of docs/incidents.md that no twin can hold, each with the reason.

KUBERNETES = "a Kubernetes rig has no twin; make test-cluster replays it on a real API"
BOARD = "needs the board itself"
RECORDED = "health of a real machine; the gates' tests read recorded output"

NOT_HELD = {
    "A1": "the libvgpu of HAMi is on no twin; make test replays it on lab hosts",
    "A3": KUBERNETES,
    "A4": KUBERNETES,
    "A5": KUBERNETES,
    "A6": "the libvgpu of HAMi is on no twin; make test replays it on lab hosts",
    "B4": "another kernel is booted: make test-vm",
    "B6": BOARD,
    "B7": BOARD,
    "B8": "no figure of a twin is a figure",
    "C9": "nothing is broken; provenance answers before a rebuild",
    "C11": "all hosts share this machine's memory; make test-alive runs one out of it",
    "D1": "needs a CX-7",
    "D2": RECORDED,
    "D3": RECORDED,
    "D4": RECORDED,
    "D6": "the host itself hangs: make test-vm",
    "D7": "all hosts share this machine's memory; make test-alive runs one out of it",
    "D8": "another kernel is booted, and RDMA: " + RECORDED,
    "D9": "a lab host's docker has no GPUs; the gates' tests read what docker says",
    "D10": "needs Docker 29; node's tests read its recorded answers",
    "D11": "needs RDMA devices; " + RECORDED,
    "D12": "needs a driver's module; make test-vm loads a stand-in of it",
    "D13": "needs a CDI spec that docker takes; make test-containerd has one",
    "D14": RECORDED,
    "D19": "a CPU engine without a compiler has no compiled kernels",
    "D20": KUBERNETES,
}


# The incidents that a twin can hold, by their codes in docs/incidents.md.

BOTH = frozenset({"container", "venv"})
PAIR = frozenset({"pair"})
TOWER = frozenset({"venv"})
IMAGE = frozenset({"pair with patches and modules"})
OLD, OTHER, BROKEN = (f"{version}+cpu" for version in (ENGINE_VERSION, OTHER_VERSION,
                                                       BROKEN_VERSION))  # fmt: skip
# in `mends`: the id of the copy on the second disk, and the head's name
KEPT_COPY, HEAD = "COPY-ID", "HEAD-NODE"
FROM_HEAD = f"{{}} --data from={HEAD}"
NO_ORPHAN = "pgrep -f '^VLLM::Worker_TP1 -c|^VLLM::EngineCore -c' || true"


@dataclass(frozen=True)
class Rig:
    """The twin that is broken: its hosts in rank order and what its recipe names."""

    hosts: Hosts
    names: tuple[str, ...]
    inventory: str
    recipe: Mapping[str, Any]
    user: str

    @property
    def head(self) -> str:
        """The node that answers clients."""
        return self.names[0]

    @property
    def last(self) -> str:
        """The last rank; on one host it is the head."""
        return self.names[-1]

    @property
    def weights(self) -> str:
        """Where the weights lie on a host."""
        path = str(self.recipe["weights"]["path"])
        return f"/home/{self.user}{path[1:]}" if path.startswith("~") else path

    @property
    def kinds(self) -> frozenset[str]:
        """What rows of the table it can hold: those of its runtime, and of several nodes."""
        runtime = "container" if "container" in self.recipe else "venv"
        pair = PAIR if len(self.names) > 1 else frozenset()
        parts = {"patches", "modules"} <= self.recipe.keys()
        return frozenset({runtime}) | pair | (IMAGE if pair and parts else frozenset())

    @property
    def venv(self) -> Mapping[str, str]:
        """Path and wheels of a tower's venv."""
        found: Mapping[str, str] = self.recipe["venv"]
        return found

    def patch(self, number: int) -> str:
        """The id of one of the recipe's patches; 0 is the first, -1 the last."""
        return str(self.recipe["patches"][number]["id"])

    @property
    def other_profile(self) -> str:
        """A profile that is not the default."""
        names: list[str] = list(self.recipe["profiles"])
        return next(name for name in names if name != self.recipe["default_profile"])


def _nothing(_: Rig) -> None:
    """The lab has nothing to put back."""


@dataclass(frozen=True)
class Incident:
    """One incident: how it is dealt and judged.

    `on`: the kinds of rig that can hold it; one will do. `tells`: what somebody noticed, not why.
    `codes`: the findings of which the doctor must name one while it is broken, and none afterwards.
    `mends`: runbooks with their --data, or `remedy CODE`: the command of that finding, by hand.
    `left`: a command that must print nothing on any host at the end. `after`: puts back what of the
    lab was taken. `warns`: its finding may stay as a warning, as of a unit that is off.
    """

    code: str
    on: frozenset[str]
    tells: str
    broken: Callable[[Rig], None]
    codes: tuple[str, ...]
    mends: tuple[str, ...]
    left: str = "true"
    after: Callable[[Rig], None] = _nothing
    warns: bool = False


def _stopped_without_program(rig: Rig) -> None:
    stop_breaks(rig.hosts, rig.names)
    lost_program(rig.hosts, rig.head, str(rig.recipe["venv"]["path"]))


def _stopped_with_a_ghost(rig: Rig) -> None:
    stop_breaks(rig.hosts, rig.names)
    ghost_of_our_unit(rig.hosts, rig.head)


def _killed_operator(rig: Rig) -> None:
    profile = f"profile={rig.other_profile}"
    killed_operator(rig.hosts, rig.head, rig.inventory, "serve", "--data", profile)


def _stopped_with_an_orphan(rig: Rig, title: str, port: int) -> None:
    stop_breaks(rig.hosts, rig.names)
    orphan(rig.hosts, rig.head, port, title)


def _image_with(rig: Rig, texts: Mapping[str, str]) -> None:
    image = str(rig.recipe["container"]["image"])
    image_of_other_files(rig.hosts, rig.last, image, texts)


def _patched(rig: Rig, number: int, times: int) -> None:
    _image_with(rig, engine.stand_in_files(rig.recipe, {rig.patch(number): times}))


def _without_submodules(rig: Rig) -> None:
    texts = engine.stand_in_files(rig.recipe)
    _image_with(rig, {path: text for path, text in texts.items() if "/include/" not in path})


def _upgraded_by_hand(rig: Rig) -> None:
    backed_up(rig.inventory)
    pip_install(rig.hosts, rig.head, rig.venv, BROKEN)


def _another_version_and_no_wheel(rig: Rig) -> None:
    backed_up(rig.inventory)
    pip_install(rig.hosts, rig.head, rig.venv, OTHER)
    lose_wheel(rig.hosts, rig.head, rig.venv["wheels"], OLD)


def _lost_disk(rig: Rig) -> None:
    second_disk(rig.hosts, rig.head)
    backed_up(rig.inventory)
    backed_up(rig.inventory, "--data", f"to={DISK}")
    stop_breaks(rig.hosts, rig.names)
    lose_disk(rig.hosts, rig.head, rig.venv["path"])


ROWS = (
    Incident(
        "A2", PAIR, "it still answers; a colleague copied a model onto one node this morning",
        lambda rig: weights_of_another_loader(rig.hosts, rig.last, rig.weights, rig.user),
        ("weights-magic", "weights-differ"), (FROM_HEAD.format("weights"),),
    ),
    Incident(
        "B1", TOWER, "somebody upgraded it by hand in the night: NCCL error, again and again",
        _upgraded_by_hand,
        ("venv-version", "version-broken", "crash-loop"), ("restore",),
    ),
    Incident(
        "B2", TOWER, "the service is down, and nvidia-smi says that a card is in use",
        lambda rig: _stopped_with_an_orphan(rig, "VLLM::Worker_TP1", 29777),
        ("engine-orphan", "engine-down"), ("restart",), NO_ORPHAN,
    ),
    Incident(
        "B3", TOWER, "it was restarted after somebody tidied up with pip, and stays down",
        _stopped_without_program,
        ("venv-entry-missing",), ("remedy venv-entry-missing", "serve"),
    ),
    Incident(
        "B5", TOWER, "the version that somebody installed is worse, and pip does not find the "
        "wheel of the one that was there",
        _another_version_and_no_wheel,
        ("venv-version",), ("restore",),
        after=lambda rig: find_wheel(rig.hosts, rig.head, rig.venv["wheels"]),
    ),
    Incident(
        "C1", PAIR, "it still answers; the image was rebuilt on one node at night",
        lambda rig: rebuilt_image(
            rig.hosts, rig.last, str(rig.recipe["container"]["image"])
        ),
        ("image-differs",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C2", IMAGE, "it still answers; a container of one node's new image says: cutlass.h: No "
        "such file",
        _without_submodules, ("module-missing",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C3", IMAGE, "it still answers; a container of one node's new image dies in its profile "
        "run, and somebody wants to serve it with --enforce-eager",
        lambda rig: _patched(rig, -1, 0), ("patch-missing",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C4", IMAGE, "it still answers; after the last such pull of the image both nodes hung "
        "while the experts loaded",
        lambda rig: _patched(rig, 0, 0), ("patch-missing",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C5", PAIR, "a node was started by hand from a note; since then no client gets an answer",
        lambda rig: relaunch(rig.hosts, rig.last, "/--headless/d"),
        ("worker-not-headless",), ("serve",),
    ),
    Incident(
        "C6", BOTH, "somebody ended the engine with pkill; it does not come up any more",
        lambda rig: _stopped_with_an_orphan(rig, "VLLM::EngineCore", 29778),
        ("engine-orphan", "engine-down"), ("restart",), NO_ORPHAN,
    ),
    Incident(
        "C7", BOTH, "it was relaunched with a flag pasted into a shell; it answers no more, or "
        "otherwise than before",
        lambda rig: lose_quotes(rig.hosts, rig.head),
        ("json-quotes-lost", "drift"), ("serve",),
    ),
    Incident(
        "C8", BOTH, "it serves and is slower than last week; nothing stands in any log",
        lambda rig: relaunch(rig.hosts, rig.head, with_flag("max-num-seqs", 1)),
        ("drift",), ("serve",),
    ),
    Incident(
        "C10", PAIR, "after a stop it does not start: DistNetworkError … EADDRINUSE",
        lambda rig: _stopped_with_an_orphan(rig, "VLLM::Worker_TP1", 29501),
        ("engine-orphan", "port-taken"), ("restart",), NO_ORPHAN,
    ),
    Incident(
        "C12", BOTH, "it serves; /dev/shm grows from one restart to the next",
        lambda rig: stale_segment(rig.hosts, rig.head),
        ("shm-stale",), ("restart",), f"ls /dev/shm | grep {SEGMENT} || true",
    ),
    Incident(
        "C13", BOTH, "it was down all day; the unit is tried again and again, and the engine has "
        "written no line",
        _stopped_with_a_ghost,
        ("unit-ghost", "script-ghost"), ("serve",),
        f"grep -l {GHOST} {UNIT_FILE} || true",
    ),
    Incident(
        "C14", BOTH, "after a relaunch by hand it dies, or answers with half the context",
        lambda rig: drift(rig.hosts, rig.names),
        ("forbidden-env", "drift"), ("serve",),
        f"sudo grep WORKER_MULTIPROC {ENVIRONMENT} || true",
    ),
    Incident(
        "C15", IMAGE, "it still answers; a container of one node's image says: UnboundLocalError: "
        "local variable 'w13' referenced before assignment",
        lambda rig: _patched(rig, 0, 3), ("patch-doubled",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C16", BOTH, "clients have been asking the paid cloud for hours; nobody was told",
        lambda rig: disable(rig.hosts, rig.names),
        ("unit-disabled", "engine-down"), ("serve",),
    ),
    Incident(
        "D5", BOTH, "/health says 200, and no completion ends",
        lambda rig: freeze(rig.hosts, rig.head),
        ("no-answer", "cannot-answer", "wedged-pair", "wedged-silent"), ("restart",),
        "ps -eo stat=,comm= | grep '^T.*VLLM' || true",
    ),
    Incident(
        "D15", BOTH, "it serves; last evening somebody stopped another engine's unit by hand",
        lambda rig: old_unit(rig.hosts, rig.last),
        ("second-unit",), ("remedy second-unit",),
        f"systemctl is-enabled {OLD_UNIT} | grep -x enabled || true",
        after=lambda rig: no_old_unit(rig.hosts, rig.last), warns=True,
    ),
    Incident(
        "D16", BOTH, "the laptop that was changing the profile went to sleep, and is gone",
        _killed_operator,
        ("change-open",), ("rollback",),
    ),
    Incident(
        "D17", PAIR, "it still answers; a copy of the weights to one node broke off last week",
        lambda rig: file_of_another_revision(rig.hosts, rig.last, rig.weights),
        ("weights-differ",), (FROM_HEAD.format("weights"),),
    ),
    Incident(
        "D18", TOWER, "the engine's disk died; a new one is in and empty, the second disk is well",
        _lost_disk,
        ("venv-missing", "engine-down"),
        (f"backup --data take={KEPT_COPY} --data from={DISK}", "restore"),
        after=lambda rig: no_second_disk(rig.hosts, rig.head),
    ),
)  # fmt: skip
HELD = {row.code: row for row in ROWS}
