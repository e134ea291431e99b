"""Gates of processes: no engine without a supervisor, the ports free or ours."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from gates.core import (
    MIB,
    Observed,
    Violation,
    collect_check,
    deploy_command,
    per_node,
    require,
    violation,
)
from node.rules.engine import end_ownership, is_ours, same_container
from node.rules.secret import MASK
from node.rules.text import API_SERVER, LOGIN_UNIT, POD_CGROUP
from schema.artifact import ParserAnswer
from schema.plan import CONTAINER, UNIT, Node, Plan
from schema.snapshot import (
    Connection,
    Container,
    EngineProcess,
    NodeSnapshot,
    Port,
    ShmSegment,
    Unit,
    Unreadable,
)
from schema.vllm import SHORT

# Whose engine is it: what belongs to the rig's own unit and container, and how it is doing.

EngineState = Literal["absent", "stopped", "starting", "running", "failed"]


def own_container(snapshot: NodeSnapshot) -> Container | None:
    """The container that our unit runs; None when there is none or docker is unreadable."""
    if isinstance(snapshot.docker, Unreadable):
        return None
    named = (c for c in snapshot.docker.containers if c.name.lstrip("/") == CONTAINER)
    return next(named, None)


def engine_unit(snapshot: NodeSnapshot, name: str = UNIT) -> Unit | None:
    """The engine's unit (or another of ours) as systemd sees it; None when systemd does not know
    it or is unreadable.
    """
    if isinstance(snapshot.units, Unreadable):
        return None
    named = (u for u in snapshot.units if u.name == name and u.load_state != "not-found")
    return next(named, None)


def is_own(snapshot: NodeSnapshot, holder: EngineProcess | Port) -> bool:
    """True when a process or the holder of a port is of our unit or our container."""
    container = own_container(snapshot)
    return is_ours(holder, UNIT, container.id if container else None)


def is_up(snapshot: NodeSnapshot) -> bool:
    """True while our engine holds memory: its container runs or a process of it lives."""
    container = own_container(snapshot)
    if container is not None and container.state == "running":
        return True
    processes = snapshot.engine_processes
    return not isinstance(processes, Unreadable) and any(is_own(snapshot, p) for p in processes)


def head_port(plan: Plan) -> int:
    """The port on which the head answers, a profile's override applied."""
    return int(str(plan.specs[plan.rig.head.name].flags.get("port", plan.recipe.port)))


def engine_state(plan: Plan, node: Node, snapshot: NodeSnapshot) -> EngineState:
    """How the node's engine is doing, from its unit, its container (or, in a venv, its processes)
    and (head) its open port.

    `running` says that it runs, not that it answers; only a real completion says that. What
    cannot be read counts as failed, which no caller takes for healthy.
    """
    if isinstance(snapshot.units, Unreadable) or isinstance(
        _state_holder(plan, snapshot), Unreadable
    ):
        return "failed"
    unit, container = engine_unit(snapshot), own_container(snapshot)
    if plan.recipe.container is None:
        runs, container = is_up(snapshot), None
    else:
        runs = container is not None and container.state == "running"
    if unit is not None and (unit.active_state == "failed" or unit.sub_state == "auto-restart"):
        return "failed"
    if unit is not None and unit.active_state in ("activating", "reloading"):
        return "starting"
    if unit is not None and unit.active_state == "active" and not runs:
        return "starting"
    if runs:
        return "running" if _answers(plan, node, snapshot) else "starting"
    return "absent" if unit is None and container is None else "stopped"


def _state_holder(plan: Plan, snapshot: NodeSnapshot) -> object:
    """The section that tells whether the engine runs: docker's, or that of the processes."""
    return snapshot.docker if plan.recipe.container else snapshot.engine_processes


def _answers(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """A worker has no port of its own; the head is up once ours holds its port."""
    if node.role == "worker":
        return True
    port = head_port(plan)
    return not isinstance(snapshot.ports, Unreadable) and any(
        p.port == port and is_own(snapshot, p) for p in snapshot.ports
    )


# Two `vllm serve` command lines, compared flag by flag.

# A flag's values, or True/False for a flag that stands alone (`--x`, `--no-x`).
Value = tuple[str, ...] | bool

_FLAG = re.compile(r"--?[A-Za-z]")
_LEVEL = re.compile(r"-O=?(\w+)\Z")
_JSON_MARKS = re.compile(r"""[\s"'{}\[\],]""")
NOT_SET = "not set"
LOST_QUOTES = "(lost its JSON quotes on the way)"


def serves(argv: Sequence[str]) -> bool:
    """True for a command line of `vllm serve`."""
    return "serve" in argv


def flags_of(argv: Sequence[str]) -> dict[str, Value]:
    """The flags of a `vllm serve` command line by name, `-` as `_`; of a repeated one the last.

    The model may stand without a flag, as `vllm serve MODEL`.
    """
    found: dict[str, Value] = {}
    name, values = "model", list[str]()
    for token in argv[argv.index("serve") + 1 :]:
        if not _FLAG.match(token):
            values.append(token)
            continue
        _keep(found, name, values)
        flag, equals, value = token.partition("=")
        if level := _LEVEL.match(token):
            flag, equals, value = "-O", "=", level[1]
        name = SHORT.get(flag) or flag.lstrip("-").replace("-", "_")
        values = [value] if equals else []
    _keep(found, name, values)
    return found


def _keep(found: dict[str, Value], name: str, values: list[str]) -> None:
    if values:
        found[name] = tuple(values)
    elif name.startswith("no_"):
        found[name.removeprefix("no_")] = False
    elif name != "model":
        found[name] = True


def compare_vllm_flags(want: Sequence[str], have: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(flag, wanted, had) of every flag that differs; JSON and numbers by value."""
    wanted, had = flags_of(want), flags_of(have)
    for name in (*wanted, *(n for n in had if n not in wanted)):
        one, other = wanted.get(name), had.get(name)
        if _canonical(one) != _canonical(other) and not _masked(other):
            note = f" {LOST_QUOTES}" if lost_quotes(one, other) else ""
            yield name, shown(one), shown(other) + note


def lost_quotes(want: Value | None, have: Value | None) -> bool:
    """True when `have` is the JSON of `want` without its quotes: a shell ate them (C7)."""
    if not isinstance(want, tuple) or not isinstance(have, tuple):
        return False
    if not isinstance(_parsed(" ".join(want)), (dict, list)):
        return False
    whole = " ".join(have)
    readable = isinstance(_parsed(whole), (dict, list))
    return not readable and _bare(whole) == _bare(" ".join(want))


def shown(value: Value | None) -> str:
    """A flag's value for a line of text."""
    if value is None:
        return NOT_SET
    return str(value).lower() if isinstance(value, bool) else " ".join(value)


def _bare(text: str) -> str:
    return _JSON_MARKS.sub("", text)


def _masked(value: Value | None) -> bool:
    return isinstance(value, tuple) and MASK in value


def _canonical(value: Value | None) -> object:
    return [_parsed(part) for part in value] if isinstance(value, tuple) else value


def _parsed(text: str) -> object:
    """JSON maps, lists and numbers as values; everything else as its text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, (dict, list)):
        return value
    return float(value) if type(value) in (int, float) else text


# What the vLLM that is to come says of its command line, before the one that serves is stopped.

_LINE = 300


def arguments(plan: Plan, deploy: str, answers: Mapping[str, ParserAnswer]) -> list[Violation]:
    """The target's own parser takes each node's command line.

    A flag that another version has, JSON that lost its quotes, a length that the model has not:
    what served is gone for as long as it takes to find that out (eugr/spark-vllm-docker#111).
    """
    found = []
    file = f"catalog/recipes/{plan.recipe.name}.yaml (profile {plan.profile})"
    again = deploy_command(plan, deploy) + " --dry"
    for node, answer in answers.items():
        if answer.outcome == "refused":
            found.append(
                violation(
                    "arguments-refused",
                    node,
                    f"vLLM itself refuses its command line: {answer.said[:_LINE]}",
                    evidence=f"its own parser on {node}, after {answer.took_s:.1f} s, with nothing "
                    f"stopped: {answer.said}",
                    remedy=f"change {file}, then: {again}",
                )
            )
        if answer.outcome == "unreadable":
            found.append(
                violation(
                    "weights-denied",
                    node,
                    f"the engine's user cannot read the weights: {answer.said[:_LINE]}",
                    evidence=f"asked on {node} as that user, after {answer.took_s:.1f} s, "
                    f"with nothing stopped: {answer.said}",
                    remedy=f"on {node}: sudo namei -l PATH, with the path above, shows the first "
                    "folder or file that is closed; a folder on the way: sudo chmod o+x FOLDER (no "
                    f"-R); the weights themselves: sudo chmod -R o+rX WEIGHTS; then: {again}",
                )
            )
        why = answer.said if answer.outcome == "unchecked" else answer.unsure
        if why and answer.outcome not in ("refused", "unreadable"):
            what = "the command line" if answer.outcome == "unchecked" else "the model's config"
            found.append(
                violation(
                    "arguments-unchecked",
                    node,
                    f"{what} could not be checked before the start: {why[:_LINE]}",
                    evidence=f"vLLM's own parser on {node}, after {answer.took_s:.1f} s: {why}",
                    remedy=f"nothing blocks; a start that fails goes back by itself; see it anew: "
                    f"{again}",
                )
            )
    return found


def no_supervisor(
    process: EngineProcess,
    units: dict[str, Unit],
    containers: tuple[Container, ...] | None,
) -> str | None:
    """Why nobody supervises the process, or None for one with a live unit, container or pod.

    `containers` None: docker could not be read, so a container's process is not judged.
    """
    if POD_CGROUP.search(process.cgroup):
        return None  # docker knows no container of containerd's; the kubelet supervises it
    if process.container_id is not None:
        if containers is None:
            return None
        for container in containers:
            if same_container(container.id, process.container_id):
                dead = container.state not in ("running", "paused", "restarting")
                return f"its container {container.name} is {container.state}" if dead else None
        return f"its container {process.container_id[:12]} is gone"
    if process.unit is None:
        return "it belongs to no unit and no container"
    if LOGIN_UNIT.match(process.unit):
        return f"it was left by a login ({process.unit})"
    unit = units.get(process.unit)
    if unit is not None and unit.active_state in ("inactive", "failed"):
        return f"its unit {unit.name} is {unit.active_state}"
    return None


@per_node
def engine_orphan(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """No engine process outlives its supervisor: it holds memory, shm and 29501 (C6, C10, B2)."""
    for process, why in orphans(plan, snapshot):
        title = " ".join(process.argv)[:60] or process.comm
        yield violation(
            "engine-orphan",
            node.name,
            f"pid {process.pid} on {node.name} is an engine process that nobody supervises",
            evidence=f"{why}; {title!r}, parent {process.ppid}, uid {process.uid}, "
            f"{process.rss // 1024**2} MiB resident",
            remedy=f"{deploy_command(plan, 'restart')} --dry names what it would end and spare,"
            " and why; then without --dry",
        )


def orphans(plan: Plan, snapshot: NodeSnapshot) -> list[tuple[EngineProcess, str]]:
    """The engine processes that nobody supervises, each with why; UnknownSection when it cannot be
    told. Not a server that a person left running: it listens, as `hand_port` says.
    """
    processes = require(snapshot.engine_processes, "engine_processes")
    units = {u.name: u for u in require(snapshot.units, "units")}
    docker = snapshot.docker
    containers = None if isinstance(docker, Unreadable) else docker.containers
    found = [(p, no_supervisor(p, units, containers)) for p in processes]
    return [
        (process, why)
        for process, why in found
        if why is not None and hand_port(plan, snapshot, process) is None
    ]


def hand_port(plan: Plan, snapshot: NodeSnapshot, process: EngineProcess) -> int | None:
    """The port, none of ours, on which a process in no container, or the server that it belongs to,
    listens; None: on none. Such an engine is whoever's who started it (node/orphans.py).
    """
    if process.container_id is not None:
        return None
    engines = {one.pid: one for one in require(snapshot.engine_processes, "engine_processes")}
    top = process
    while top.ppid in engines and top.ppid != top.pid:
        top = engines.pop(top.ppid)
    below = {top.pid}
    for _ in engines:
        below |= {one.pid for one in engines.values() if one.ppid in below}
    ports = [p.port for p in require(snapshot.ports, "ports") if p.pid in below]
    server = serves(top.argv) or any(map(API_SERVER.search, top.argv))
    if not server or set(ports) & our_ports(plan):
        return None
    return min(ports, default=None)


def our_ports(plan: Plan) -> set[int]:
    """The ports that an engine of this plan listens on, on any of its nodes."""
    several = plan.recipe.multi_node
    return {head_port(plan), *([several.master_port] if several is not None else [])}


@per_node
def port_taken(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The API's and the rendezvous's ports are free or held by this very engine (C5, C10).

    The rendezvous binds on the head; on a worker it is held by an orphan, or by an engine that was
    started without --headless. Both end the start with EADDRINUSE.
    """
    wanted = {head_port(plan): "the API"} if node.role == "head" else {}
    if plan.recipe.multi_node is not None:
        wanted[plan.recipe.multi_node.master_port] = "the rendezvous"
    for port in require(snapshot.ports, "ports"):
        if port.port in wanted and not is_own(snapshot, port):
            yield violation(
                "port-taken",
                node.name,
                f"port {port.port} ({wanted[port.port]}) on {node.name} is held by "
                f"{port.process or 'a process that is not visible'}",
                evidence=_holder(snapshot, port),
                remedy=_free_port(plan, node, snapshot, port),
            )


def _holder(snapshot: NodeSnapshot, port: Port) -> str:
    named = port.container_id
    docker = snapshot.docker
    if named is not None and not isinstance(docker, Unreadable):
        names = [c.name for c in docker.containers if same_container(c.id, named or "")]
        named = f"{names[0]} ({named[:12]})" if names else f"{named[:12]} (gone)"
    return (
        f"{port.address}:{port.port} listens; pid {port.pid or 'not visible'}, process "
        f"{port.process or 'unknown'}, unit {port.unit or 'none'}, container {named or 'none'}"
    )


def _free_port(plan: Plan, node: Node, snapshot: NodeSnapshot, port: Port) -> str:
    look = f"on {node.name}: sudo ss -ltnp 'sport = :{port.port}'"
    by = end_ownership(port, *snapshot.supervisors)
    if by is not None:
        return f"{look}; {by.text}"
    if port.pid is not None:
        return f"{look}; sudo kill -TERM {port.pid}"
    return f"{look}; then {deploy_command(plan, 'doctor')}"


PROCESS_GATES = (engine_orphan, port_taken)


# Doctor's findings about what other engines left behind, or still hold.

# A segment is made a moment before it is mapped.
SHM_SETTLE_S = 30.0
# More names than this make no line that a person would type.
BY_HAND = 8
SHELLS = ("bash", "sh", "zsh", "dash", "fish", "tmux: server", "screen", "sshd", "sudo")


def stale_segments(snapshot: NodeSnapshot) -> list[ShmSegment]:
    """vLLM's shared memory that nobody maps or opens; UnknownSection when it cannot be told."""
    now = snapshot.identity.clock_unix_s
    return [
        segment
        for segment in require(snapshot.shm, "shm")
        if segment.is_engines and not segment.mappers and now - segment.mtime > SHM_SETTLE_S
    ]


@per_node
def shm_stale(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Segments of dead engines hold memory until somebody removes them (C12)."""
    stale = stale_segments(snapshot)
    if stale:
        names = " ".join(shlex.quote(f"/dev/shm/{segment.name}") for segment in stale)
        by_hand = f", or without a restart on {node.name}: sudo rm {names}"
        size = sum(segment.size for segment in stale) / MIB
        yield violation(
            "shm-stale",
            node.name,
            f"{len(stale)} shared memory segments of dead engines on {node.name}",
            evidence=f"{size:.1f} MiB in {names[:300]}; no process maps or opens them",
            remedy=f"{deploy_command(plan, 'restart')} (removes what nobody maps)"
            + (by_hand if len(stale) <= BY_HAND else ""),
        )


@per_node
def foreign_engine(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Another vLLM lives here: launched by hand, or by another container or unit (C14).

    One that nobody supervises is `engine-orphan`'s finding, unless its launcher still lives.
    """
    processes = require(snapshot.engine_processes, "engine_processes")
    engines = {process.pid for process in processes}
    for process in processes:
        if process.ppid in engines or is_own(snapshot, process):
            continue
        by = launched_by(snapshot, process)
        if by is None and (port := hand_port(plan, snapshot, process)) is not None:
            by = f"started by hand, its shell is gone; it serves on port {port}"
        if by is None:
            continue
        yield violation(
            "foreign-engine",
            node.name,
            f"a vLLM that is not ours runs on {node.name}: pid {process.pid}, {by}",
            evidence=f"{' '.join(process.argv)[:160]!r}; holds {_holds(snapshot, process)}"
            f"{_against(plan, node, process)}",
            remedy=_end(node, snapshot, process),
        )


def launched_by(snapshot: NodeSnapshot, process: EngineProcess) -> str | None:
    """Who keeps a foreign engine alive; None for an orphan."""
    if process.container_id is not None:
        # Without docker's word nobody knows whose container it is, ours or another's.
        if isinstance(snapshot.docker, Unreadable):
            return None
        for container in snapshot.docker.containers:
            if same_container(container.id, process.container_id) and container.state == "running":
                return f"in container {container.name} (restart policy {container.restart_policy})"
        return None
    if process.unit is not None and not LOGIN_UNIT.match(process.unit):
        units = (
            {} if isinstance(snapshot.units, Unreadable) else {u.name: u for u in snapshot.units}
        )
        unit = units.get(process.unit)
        dead = unit is not None and unit.active_state in ("inactive", "failed")
        return None if dead else f"under unit {process.unit}"
    if process.ppid != 1 and process.parent_comm in SHELLS:
        return f"launched by hand ({process.parent_comm}, pid {process.ppid})"
    return None


def _holds(snapshot: NodeSnapshot, process: EngineProcess) -> str:
    """Memory, GPU memory and ports of a process, for evidence."""
    parts = [f"{process.rss // MIB} MiB resident"]
    if not isinstance(snapshot.gpus, Unreadable):
        used = sum(
            row.used_mib or 0
            for row in snapshot.gpus.processes
            if row.pid == process.pid or _same_box(row.container_id, process)
        )
        parts += [f"{used} MiB of GPU memory"] if used else []
    if not isinstance(snapshot.ports, Unreadable):
        ports = [
            str(p.port)
            for p in snapshot.ports
            if p.pid == process.pid or _same_box(p.container_id, process)
        ]
        parts += [f"ports {', '.join(ports[:5])}"] if ports else []
    return ", ".join(parts)


def _same_box(container_id: str | None, process: EngineProcess) -> bool:
    both = container_id is not None and process.container_id is not None
    return both and same_container(container_id or "", process.container_id or "")


def _against(plan: Plan, node: Node, process: EngineProcess) -> str:
    """How its flags differ from the recipe's, where it serves the same model."""
    argv = plan.specs[node.name].argv
    model = {argv[2], plan.recipe.served_model_name}
    if not serves(process.argv) or not model & set(process.argv):
        return ""
    # What it has otherwise tells more than what it leaves at vLLM's default.
    rows = sorted(compare_vllm_flags(argv, process.argv), key=lambda row: row[2] == NOT_SET)
    lines = [f"{name} {have}, recipe says {want}" for name, want, have in rows]
    return f"; against the recipe: {'; '.join(lines[:6])}" if lines else ""


def _end(node: Node, snapshot: NodeSnapshot, process: EngineProcess) -> str:
    """The command that ends it, through whoever keeps it alive."""
    by = end_ownership(process, *snapshot.supervisors)
    if by is not None:
        return f"on {node.name}: {by.text}"
    return f"on {node.name}: ps -o pid,ppid,lstart,args -p {process.pid}; kill {process.pid}"


FOREIGN_ENGINE_GATES = (shm_stale, foreign_engine)


# Doctor's finding about a pair of which one half is gone while /health says 200.

RANK_TITLES = ("VLLM::Worker", "VLLM::EngineCore")


def wedged_pair(plan: Plan, observed: Observed) -> list[Violation]:
    """Every rank of the head's engine is alive and joined with it.

    With a rank lost, /health and /v1/models stay 200 until a client asks (field notes, vLLM). A
    joined worker keeps a connection to the head's rendezvous port, and further ones for its data.
    """
    if plan.recipe.multi_node is None or len(plan.rig.nodes) < 2:
        return []
    head = plan.rig.head
    # What cannot be read is a finding of gates.host.
    ups, _ = collect_check(plan, observed, lambda n, s: _look(plan, n, s))
    seen = {node.name: (node, snapshot, found) for node, (snapshot, found) in ups}
    if head.name not in seen or engine_state(plan, head, seen[head.name][1]) != "running":
        return []
    broken = [reason for worker in plan.rig.workers for reason in _lost(plan, worker, seen)]
    broken += _no_rank(head, seen[head.name][1])
    if not broken:
        return []
    return [
        violation(
            "wedged-pair",
            head.name,
            f"the head says that it serves, but its engine is not whole: {broken[0]}",
            evidence="; ".join((*broken, _starts(seen))),
            remedy=f"{deploy_command(plan, 'restart')} (all nodes as one, workers first; one "
            "alone hangs at the rendezvous)",
        ),
    ]


def _look(
    plan: Plan, node: Node, snapshot: NodeSnapshot
) -> tuple[NodeSnapshot, tuple[Connection, ...]]:
    require(snapshot.engine_processes, "engine_processes")
    return snapshot, require(snapshot.connections, "connections")


Seen = dict[str, tuple[Node, NodeSnapshot, tuple[Connection, ...]]]


def _lost(plan: Plan, worker: Node, seen: Seen) -> Iterator[str]:
    """Why the head cannot count on this worker; nothing for one that was not seen."""
    if worker.name not in seen:
        return
    _, snapshot, _ = seen[worker.name]
    state = engine_state(plan, worker, snapshot)
    if state != "running":
        yield f"the engine of {worker.name} is {state}"
        return
    gone = list(_no_rank(worker, snapshot))
    yield from gone
    if gone:
        return
    joined = [c for c in _between(seen, worker, plan) if _own(seen, c[0], c[1])]
    master = plan.recipe.multi_node.master_port if plan.recipe.multi_node else 0
    at_master = [c for _, c in joined if master in (c.local_port, c.peer_port)]
    api = head_port(plan)
    data = [c for _, c in joined if not {master, api} & {c.local_port, c.peer_port}]
    if not at_master:
        yield f"no ESTABLISHED connection of {worker.name} with the rendezvous (port {master})"
    elif not data and _younger(seen, worker, plan.rig.head):
        yield (
            f"{worker.name} started after the head, and waits at the rendezvous: no connection "
            "carries data"
        )


def _between(seen: Seen, worker: Node, plan: Plan) -> Iterator[tuple[str, Connection]]:
    """The connections of worker and head with each other, each with the node that reports it."""
    head = plan.rig.head
    for name, other in ((worker.name, head), (head.name, worker)):
        addresses = {str(other.fabric_address), str(other.lan_address)}
        for connection in seen[name][2]:
            if connection.peer_address in addresses:
                yield name, connection


def _own(seen: Seen, name: str, connection: Connection) -> bool:
    container = own_container(seen[name][1])
    held = connection.container_id
    return container is not None and held is not None and same_container(held, container.id)


def _no_rank(node: Node, snapshot: NodeSnapshot) -> Iterator[str]:
    """Says so when no process of our engine on the node is a rank."""
    ranks = [
        process
        for process in require(snapshot.engine_processes, "engine_processes")
        if is_own(snapshot, process) and process.argv[0].startswith(RANK_TITLES)
    ]
    if not ranks:
        yield f"no rank lives on {node.name}: none of its processes is a VLLM::Worker"


def _younger(seen: Seen, worker: Node, head: Node) -> bool:
    one, other = engine_unit(seen[worker.name][1]), engine_unit(seen[head.name][1])
    if one is None or other is None or one.since_unix_s is None or other.since_unix_s is None:
        return False
    return one.since_unix_s > other.since_unix_s


def _starts(seen: Seen) -> str:
    """How long each node's unit runs, which tells who came back alone."""
    ages = []
    for name, (_, snapshot, _) in seen.items():
        unit = engine_unit(snapshot)
        if unit is not None and unit.since_unix_s is not None:
            age = snapshot.identity.clock_unix_s - unit.since_unix_s
            ages.append(f"{name} {age:.0f} s ({unit.restarts} restarts)")
    return "units run for: " + (", ".join(ages) or "unknown")


PEER_GATES = (wedged_pair,)
