"""Systemd units: supervision, crash loops, ghosts, launch scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone

from gates.artifact import venv_entry, venv_there
from gates.core import Severity, Violation, deploy_command, per_node, require, violation
from gates.endpoint import action, cause_of, from_log, last_exit
from gates.processes import engine_state, engine_unit, flags_of, own_container, serves
from node.rules.engine import same_container
from node.rules.text import LOGIN_UNIT, POD_CGROUP, ROOT_CAUSE
from schema import render_unit
from schema.plan import CONTAINER, UNIT, Node, Plan
from schema.render_engine import NODE_PATH, SCRIPT_IN_CONTAINER, SCRIPT_PATH, endpoint
from schema.render_unit import drop_in_path, endpoint_in
from schema.snapshot import Container, EngineProcess, FileState, NodeSnapshot, Unit, Unreadable

# systemd units: ghosts, crash loops, supervisors, the launch script.

# Which units and containers have to do with an engine, and the doctor's findings about ours.

# The engine's unit and its helpers (the pair check, the watch).
OWN_UNITS = "rigbook-"
# guards of memory whose options name an engine as their prey (deploys/host.py sets earlyoom's)
_GUARDS = ("earlyoom", "systemd-oomd", "nohang")


def runs_vllm(snapshot: NodeSnapshot, container: Container) -> bool:
    """True for a container that runs a vLLM, or was made to."""
    told = " ".join((container.name, container.image, *container.argv)).lower()
    if "vllm" in told or container.name.lstrip("/") == CONTAINER:
        return True
    processes = snapshot.engine_processes
    return not isinstance(processes, Unreadable) and any(
        same_container(p.container_id or "", container.id) for p in processes
    )


def concerns_engine(snapshot: NodeSnapshot, unit: Unit) -> bool:
    """True for our unit, for one that an engine's process belongs to, and for one whose commands,
    or the script that they run, name vLLM, our container or one with vLLM.
    """
    if unit.name == UNIT or unit.name in _holders(snapshot):
        return True
    if unit.exec_start and unit.exec_start[0].rpartition("/")[2] in _GUARDS:
        return False
    lines = (" ".join(unit.exec_start), *unit.exec_start_pre, *unit.script_words)
    return name_engine(snapshot, {word for line in lines for word in line.split()})


def name_engine(snapshot: NodeSnapshot, words: Collection[str]) -> bool:
    """True for words of a command line that name vLLM, our container or one with vLLM."""
    if any("vllm" in word.lower() or word == CONTAINER for word in words):
        return True
    if isinstance(snapshot.docker, Unreadable):
        return False
    return any(
        container.name.lstrip("/") in words and runs_vllm(snapshot, container)
        for container in snapshot.docker.containers
    )


def _holders(snapshot: NodeSnapshot) -> set[str]:
    """The units that a process of an engine belongs to, as far as it is known."""
    processes = snapshot.engine_processes
    if isinstance(processes, Unreadable):
        return set()
    return {p.unit for p in processes if p.unit and not LOGIN_UNIT.match(p.unit)}


def dormant(unit: Unit) -> bool:
    """True for a unit that neither runs nor comes back at the next boot."""
    idle = unit.active_state in ("inactive", "failed") and unit.sub_state != "auto-restart"
    return idle and unit.enabled != "enabled"


def watched(snapshot: NodeSnapshot, unit: Unit) -> bool:
    """True for our unit, and for another that starts a vLLM and is not dormant."""
    return unit.name == UNIT or (concerns_engine(snapshot, unit) and not dormant(unit))


def repoint(plan: Plan, node: Node, unit: str) -> str:
    """The command that points a unit of others at what is there (deploys/unit.py)."""
    program = "exec_start=/PATH/OF/PROGRAM ARGUMENTS"
    return deploy_command(plan, "unit", f"unit={unit}", f"only={node.name}", program)


@per_node
def own_policy(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """docker restarts our container by itself, beside systemd; the next serve makes it anew."""
    if plan.recipe.container is None and isinstance(snapshot.docker, Unreadable):
        return  # a rig without docker
    for container in require(snapshot.docker, "docker").containers:
        policy = container.restart_policy
        if container.name.lstrip("/") == CONTAINER and policy not in ("no", ""):
            yield violation(
                "restart-policy",
                node.name,
                f"docker restarts {CONTAINER} on {node.name} by itself ({policy}), beside systemd",
                evidence=f"container {CONTAINER} (ours): restart policy {policy}, "
                f"{container.state}, restarted {container.restarts} times by docker",
                remedy=f"on {node.name}: sudo docker update --restart=no {CONTAINER}",
                severity="warn",
            )


@per_node
def unit_state(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Our unit comes back at the next boot, and systemd runs what stands on disk."""
    require(snapshot.units, "units")
    unit = engine_unit(snapshot)
    if unit is None:
        return
    torn = [o for o in unit.overrides if o.exec_start and not o.resets]
    if torn:
        yield violation(
            "drop-in-no-reset",
            node.name,
            f"a drop-in of {UNIT} on {node.name} adds an ExecStart without a reset",
            evidence="; ".join(f"{o.path}: ExecStart={o.exec_start[0]}" for o in torn)
            + f"; load state {unit.load_state}",
            remedy=f"on {node.name}: put an empty line ExecStart= before it in "
            f"{shlex.quote(torn[0].path)} (or remove that file), then sudo systemctl daemon-reload",
            severity="block" if unit.load_state not in ("loaded", "") else "warn",
        )
    if unit.needs_reload:
        yield violation(
            "unit-not-reloaded",
            node.name,
            f"systemd on {node.name} still runs an older {UNIT} than the one on disk",
            evidence=f"NeedDaemonReload=yes; unit file {unit.fragment}; drop-ins "
            f"{', '.join(unit.drop_ins) or 'none'}",
            remedy=f"on {node.name}: sudo systemctl daemon-reload, then "
            + deploy_command(plan, "restart"),
        )
    if unit.enabled != "enabled":
        yield violation(
            "unit-disabled",
            node.name,
            f"{UNIT} on {node.name} will not come back after a reboot",
            evidence=f"UnitFileState={unit.enabled or 'none'}, now {unit.active_state}",
            remedy=f"on {node.name}: sudo systemctl {_enable(unit)}",
        )


def _enable(unit: Unit) -> str:
    masked = unit.enabled.startswith("masked") or unit.load_state == "masked"
    return f"unmask {UNIT} && sudo systemctl enable {UNIT}" if masked else f"enable {UNIT}"


SUPERVISION_GATES = (own_policy, unit_state)


# Who else starts an engine on a node: a unit, docker's policy, a line of a crontab, Kubernetes.
#
# One that may start a second load beside ours blocks; one that is off and stays off is a warning.
# Two
# loads of 100 GiB in the 120 GiB of a Spark end in a power cycle (open-gpu-kernel-modules#1358).


def _adopt(plan: Plan, node: Node, by_hand: str) -> str:
    """The remedy: adopt looks at it and takes it over; or by hand, without a way back."""
    return f"{deploy_command(plan, 'adopt')} -y; or without it, on {node.name}: {by_hand}"


def _elsewhere(plan: Plan, processes: Iterable[EngineProcess]) -> bool:
    """True for engines that run and answer at other ports than the rig's: another model beside
    ours, whose memory the memory gates count.
    """
    ports = [flags_of(p.argv).get("port", ("8000",)) for p in processes if serves(p.argv)]
    return bool(ports) and (str(plan.recipe.port),) not in ports


def _processes(snapshot: NodeSnapshot) -> tuple[EngineProcess, ...]:
    found = snapshot.engine_processes
    return () if isinstance(found, Unreadable) else found


def _policy_severity(plan: Plan, snapshot: NodeSnapshot, container: Container) -> Severity:
    """One that was stopped stays down, unless its policy is `always`."""
    down = container.state in ("exited", "created", "dead")
    if down and container.restart_policy != "always":
        return "warn"
    inside = [p for p in _processes(snapshot) if same_container(p.container_id or "", container.id)]
    return "warn" if _elsewhere(plan, inside) else "block"


@per_node
def restart_policy(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """docker restarts no vLLM by itself: a policy on the ranks of two nodes makes wedged pairs
    (field notes, docker), and after a boot it starts what systemd starts, too.
    """
    if plan.recipe.container is None and isinstance(snapshot.docker, Unreadable):
        return  # a rig without docker
    for container in require(snapshot.docker, "docker").containers:
        policy = container.restart_policy
        name = container.name.lstrip("/")
        # the next serve makes ours anew (supervision.own_policy)
        if policy in ("no", "") or name == CONTAINER or not runs_vllm(snapshot, container):
            continue
        named = shlex.quote(name)
        yield violation(
            "restart-policy",
            node.name,
            f"docker restarts {name} on {node.name} by itself ({policy}), beside systemd",
            evidence=f"container {name} (not ours): restart policy {policy}, {container.state}, "
            f"restarted {container.restarts} times by docker",
            remedy=_adopt(
                plan, node, f"sudo docker update --restart=no {named} && sudo docker stop {named}"
            ),
            severity=_policy_severity(plan, snapshot, container),
        )


def _unit_severity(plan: Plan, snapshot: NodeSnapshot, unit: Unit) -> Severity:
    """A unit that is off and disabled starts nothing by itself."""
    if dormant(unit):
        return "warn"
    held = [p for p in _processes(snapshot) if p.unit == unit.name]
    return "warn" if _elsewhere(plan, held) else "block"


@per_node
def second_unit(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """One supervisor an engine: two units that start it fight for ports and memory. One that was
    stopped, not disabled, comes back at the next boot beside ours.
    """
    for unit in require(snapshot.units, "units"):
        ours = unit.name.startswith(OWN_UNITS)
        if ours or unit.load_state == "not-found" or not concerns_engine(snapshot, unit):
            continue
        yield violation(
            "second-unit",
            node.name,
            f"{unit.name} on {node.name} starts a vLLM, too",
            evidence=f"{unit.active_state}/{unit.sub_state}, {unit.enabled or 'not enabled'}, "
            f"unit file {unit.fragment}; ExecStart {' '.join(unit.exec_start)[:200]}",
            remedy=_adopt(plan, node, f"sudo systemctl disable --now {shlex.quote(unit.name)}"),
            severity=_unit_severity(plan, snapshot, unit),
        )


@per_node
def second_supervisor(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A crontab starts an engine at boot or from time to time, and nothing in systemd or docker
    shows it: the second load comes when nobody looks.
    """
    for row in require(snapshot.cron, "cron"):
        if not name_engine(snapshot, row.words):
            continue
        owner = "" if row.file.startswith("/etc/") else f" -u {shlex.quote(row.user)}"
        file = shlex.quote(row.file)
        edit = f"sudo crontab{owner} -e" if owner else f"sudo editor +{row.line} {file}"
        yield violation(
            "second-supervisor",
            node.name,
            f"a line of {row.file} on {node.name} starts a vLLM, too",
            evidence=f"{row.file}:{row.line}: {row.text[:300]}",
            remedy=_adopt(plan, node, f"{edit} (put a # before line {row.line})"),
        )


@per_node
def second_pod(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A pod's engine is started again by the kubelet whenever it ends, and at each boot. Nothing in
    systemd or docker shows it, and in the pod's own network it takes no port of ours.
    """
    found = require(snapshot.engine_processes, "engine_processes")
    pods = [p for p in found if POD_CGROUP.search(p.cgroup)]
    servers = [p for p in pods if serves(p.argv)]
    for process in servers or pods[:1]:
        yield violation(
            "second-supervisor",
            node.name,
            f"Kubernetes runs a vLLM on {node.name}, too: pid {process.pid}",
            evidence=f"cgroup {process.cgroup}; {' '.join(process.argv)[:160]}",
            remedy=_adopt(
                plan, node, "sudo kubectl get deployments -A names it; then sudo kubectl scale "
                "--replicas=0 -n NAMESPACE deployment/NAME",
            ),
            severity="warn" if _elsewhere(plan, [process]) else "block",
        )  # fmt: skip


SUPERVISOR_GATES = (restart_policy, second_unit, second_supervisor, second_pod)


# Doctor's findings about an engine that is not up: a crash loop, and where it stands.

# A restart is of the present trouble when it is younger than this, in seconds.
RECENT_S = 3600.0


@per_node
def crash_loop(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A unit that ends and is started again, all day: each load fills memory and page cache."""
    now = snapshot.identity.clock_unix_s
    for unit in require(snapshot.units, "units"):
        if not watched(snapshot, unit) or not looping(unit, now, plan):
            continue
        budget = plan.recipe.expect.start_budget_s
        since = unit.restart_times[0] if unit.restart_times else unit.since_unix_s
        count = max(unit.restarts, len(unit.restart_times))
        given_up = unit.result == "start-limit-hit" or unit.active_state == "failed"
        # Once more than it was restarted; an automatic restart that waits is not yet counted.
        yield violation(
            "crash-loop",
            node.name,
            f"{unit.name} on {node.name} "
            + (f"crashed {count + 1} times; systemd gave up" if given_up else
               f"was started {count + 1} times, and systemd starts it again"),
            evidence=f"started {count + 1} times since {_when(since)}, now {unit.active_state}/"
            f"{unit.sub_state} ({unit.result}); last exit: {last_exit(unit)}; log: "
            f"{said(unit)}",
            remedy=_coming_back(plan, now + budget) if unit.name == UNIT and not given_up else
            f"on {node.name}: sudo systemctl stop {shlex.quote(unit.name)}; {action(unit)}mend "
            "the findings above "
            + (f"it, then {deploy_command(plan, 'restart')}" if unit.name == UNIT else "it"),
            severity="block" if unit.name == UNIT else "warn",
            cause=cause_of(unit),
        )  # fmt: skip


def _coming_back(plan: Plan, until: float) -> str:
    """What is done about our unit within its limits: its start limit ends a loop by itself."""
    return (
        f"wait until {_when(until)}: {deploy_command(plan, 'verify')} tells when it answers; "
        "it comes back by itself, or systemd gives up, and the doctor says what then"
    )


def said(unit: Unit) -> str:
    """The root cause of a unit's log, else its last two errors, else its last line."""
    named = [line for line in unit.errors[:1] if line.startswith(ROOT_CAUSE)]
    return "; ".join(named or unit.errors[-2:]) or unit.last_log_line or "none"


def looping(unit: Unit, now: float, plan: Plan) -> bool:
    """True while systemd restarts the unit again and again, or has given up doing so.

    A unit that runs counts while its present start is younger than the start budget: only then
    may its former restarts be the present trouble.
    """
    if unit.result == "start-limit-hit" or unit.sub_state == "auto-restart":
        return True
    if unit.active_state == "failed":
        return unit.restarts > 0
    recent = [t for t in unit.restart_times if now - t < RECENT_S]
    young = unit.since_unix_s is None or now - unit.since_unix_s < plan.recipe.expect.start_budget_s
    return unit.restarts > 1 and young and len(recent) > 1


def _when(moment: float | None) -> str:
    if moment is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


@per_node
def engine_down(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Where the engine stands when it is not running; the findings before it say why."""
    now = engine_state(plan, node, snapshot)
    if now == "running":
        return
    unit = engine_unit(snapshot)
    age = None
    if unit is not None and unit.since_unix_s is not None:
        age = snapshot.identity.clock_unix_s - unit.since_unix_s
    budget = plan.recipe.expect.start_budget_s
    loading = now == "starting" and age is not None and age <= budget
    yield violation(
        "engine-down",
        node.name,
        f"the engine is {now}" + (f" for {age:.0f} s of {budget} s" if loading else ""),
        evidence=_standing(plan, unit, own_container(snapshot)),
        remedy=f"wait for it: {deploy_command(plan, 'verify')}"
        if loading
        else deploy_command(plan, "serve"),
        cause=_why_down(plan, node, now, unit, loading),
    )


def _standing(plan: Plan, unit: Unit | None, container: Container | None) -> str:
    box = f"; container {container.state if container else 'none'}" if plan.recipe.container else ""
    if unit is None:
        return f"systemd knows no {UNIT}{box}"
    return (
        f"{UNIT} {unit.active_state}/{unit.sub_state} ({unit.result or 'no result'}), load state "
        f"{unit.load_state}, since {_when(unit.since_unix_s)}, last exit: {last_exit(unit)}{box}; "
        f"log: {unit.last_log_line or 'none'}"
    )


def _why_down(plan: Plan, node: Node, now: str, unit: Unit | None, loading: bool) -> str:
    several = len(plan.rig.nodes) > 1
    # the head's unit is active once a real answer came
    if loading and node.role == "head" and unit is not None and unit.active_state == "active":
        return "it loads, or one of its processes has died: then systemd starts it again"
    if loading:
        return "it loads" + ("; the head waits for its workers at the rendezvous" * several)
    if now == "starting" and not several:
        return "it hangs: in a load, or in a kernel build"
    if now == "starting":
        return "it hangs: at the rendezvous with its peer, in a load, or in a kernel build"
    if now == "failed" and unit is not None:
        return cause_of(unit)
    return {"absent": "it was never served here", "stopped": "somebody stopped it"}.get(now, "")


CRASH_LOOP_GATES = (crash_loop, engine_down)


# Gates of systemd units: what a unit starts must exist.

# A drop-in's name that can be typed as it is.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


def missing(unit: Unit) -> list[str]:
    """The files of the host that the unit's commands name and that are not there."""
    paths = [ghost.path for ghost in unit.ghosts if ghost.container is None]
    if unit.exec_start_exists is False and unit.exec_start and unit.exec_start[0] not in paths:
        paths.append(unit.exec_start[0])
    return list(dict.fromkeys(paths))


def mended_by_serve(plan: Plan, node: Node, unit: Unit) -> bool:
    """True when what is missing stands in a unit file of ours that serve writes anew.

    A drop-in outlives that, and a file that our own unit file names stays missing.
    """
    files = {document.path: document.content for document in plan.documents[node.name]}
    ours = files.get(unit.fragment or "")
    if ours is None or unit.drop_ins or not missing(unit):
        return False
    words = ours.split()
    # What serve itself writes, and its program, is there again before the unit starts.
    gone = [
        path for path in missing(unit) if path not in files and path != render_unit.program_path()
    ]
    return not any(path in words or f"={path}" in ours for path in gone)


def repointed(plan: Plan, node: Node, unit: Unit, steps: Mapping[str, str]) -> str:
    """The command that mends a unit which names a file that is not there.

    `steps` says which Exec line names each file. A unit of others is repointed by a drop-in; from
    ours the drop-in that does it is taken away, because serve writes the unit file whole.
    """
    if not unit.name.startswith(OWN_UNITS):
        if set(steps.values()) <= {"ExecStart"}:
            return repoint(plan, node, unit.name)
    elif torn := [o.path for o in unit.overrides if o.exec_start and _ours_to_remove(o.path, unit)]:
        name = torn[-1].rpartition("/")[2].removesuffix(".conf")
        keys = (f"unit={unit.name}", f"drop_in={name}", "remove=true", f"only={node.name}")
        return f"{deploy_command(plan, 'unit', *keys)}, then {deploy_command(plan, 'restart')}"
    return (
        f"on {node.name}: systemctl cat {shlex.quote(unit.name)}; mend the line, then sudo "
        "systemctl daemon-reload"
    )


def _ours_to_remove(path: str, unit: Unit) -> bool:
    name = path.rpartition("/")[2].removesuffix(".conf")
    return drop_in_path(unit.name, name) == path and NAME.match(name) is not None


@per_node
def unit_ghost(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A unit that names a file that is gone ends with 127 or 203 every 30 s, all day (C13).

    It blocks for our own unit, unless serve's new unit file mends it; another's is a warning.
    """
    for unit in require(snapshot.units, "units"):
        gone = missing(unit)
        if not gone or not watched(snapshot, unit):
            continue
        by_serve = mended_by_serve(plan, node, unit)
        steps = {ghost.path: ghost.step for ghost in unit.ghosts}
        named = ", ".join(f"{steps.get(path, 'ExecStart')} {path}" for path in gone)
        yield violation(
            "unit-ghost",
            node.name,
            f"{unit.name} on {node.name} starts a program that does not exist: {gone[0]}",
            evidence=f"{named}; ExecStart "
            f"{' '.join(unit.exec_start)[:200]}; unit file {unit.fragment}; drop-ins "
            f"{', '.join(unit.drop_ins) or 'none'}; {unit.active_state}, {unit.restarts} "
            f"restarts, last exit status {unit.exit_status}",
            remedy=deploy_command(plan, "serve")
            if by_serve
            else repointed(plan, node, unit, steps),
            severity="block" if unit.name == UNIT and not by_serve else "warn",
        )


GHOST_GATES = (unit_ghost,)


# Doctor's finding about a launch script that is not there, on the host or in the container.

# The shell's and docker's exit statuses for what cannot be run, or is not there.
NOT_RUN = (126, 127)
_NAMED = re.compile(r"(/[\w./@+-]+): (?:No such file or directory|Is a directory|not found)")


@per_node
def script_ghost(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The launch script is there, in the container, too: one that lives only in a container's
    writable layer is the ghost of the next reboot (the third seed's status 127, all day).
    """
    serve = deploy_command(plan, "serve")
    for unit in require(snapshot.units, "units"):
        for ghost in unit.ghosts:
            if ghost.container is not None and watched(snapshot, unit):
                yield _ghost(
                    node,
                    f"{unit.name} on {node.name} starts {ghost.path}, which is not in container "
                    f"{ghost.container}",
                    f"{ghost.step} of {unit.fragment}: {' '.join(unit.exec_start)[:200]}; "
                    f"{unit.active_state}/{unit.sub_state}, last exit: {last_exit(unit)}",
                    serve if unit.name == UNIT else f"{repoint(plan, node, unit.name)}; or, for "
                    f"rigbook's own engine, on {node.name}: sudo systemctl disable --now "
                    f"{shlex.quote(unit.name)}; then {serve}",
                    warn=unit.name != UNIT,
                )  # fmt: skip
    own = engine_unit(snapshot)
    if own is not None:
        yield from _own(plan, node, snapshot, own)


def _own(plan: Plan, node: Node, snapshot: NodeSnapshot, unit: Unit) -> Iterator[Violation]:
    """The same about our own unit, whose script serve bind-mounts from the host."""
    serve, script = deploy_command(plan, "serve"), _script(snapshot)
    container = own_container(snapshot) if plan.recipe.container else None
    if script is not None and script.kind != "file":
        yield _ghost(
            node,
            f"the launch script of {node.name} is not there: {SCRIPT_PATH}",
            f"{SCRIPT_PATH} is {script.kind}; "
            + (
                "docker mounts an empty folder in the place of a missing file, and bash in the "
                "container ends with 126 or 127"
                if plan.recipe.container
                else "the unit starts it, and ends with 203"
            ),
            serve,
        )
    elif container is not None and not _mounted(container):
        yield _ghost(
            node,
            f"{container.argv[-1]} in container {container.name} of {node.name} is no mount of the "
            "host's: it is gone with the container",
            f"argv {' '.join(container.argv)}; mounts: "
            f"{', '.join(m.target for m in container.mounts) or 'none'}",
            serve,
            warn=container.state == "running",
        )
    elif _not_run(unit) and (plan.recipe.container or not _venv_broken(plan, node, snapshot)):
        which = "container" if plan.recipe.container else "unit"
        named = _NAMED.search("\n".join(unit.errors))
        yield _ghost(
            node,
            f"what the {which} of {node.name} has to start is not there: "
            f"{named[1] if named else 'exit status ' + str(unit.exit_status)}",
            f"last exit: {last_exit(unit)}; log: {'; '.join(unit.errors[-2:]) or 'none'}",
            serve,
            cause=from_log(unit.errors) or "",
        )


def _venv_broken(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """True where a finding of gates.artifact already names the missing piece."""
    pieces = (*venv_there(plan, {node.name: snapshot}), *venv_entry(plan, {node.name: snapshot}))
    return bool(pieces)


def _script(snapshot: NodeSnapshot) -> FileState | None:
    if isinstance(snapshot.files, Unreadable):
        return None
    return next((state for state in snapshot.files if state.path == SCRIPT_PATH), None)


def _mounted(container: Container) -> bool:
    """True when the script that the container runs (its last word) comes from the host."""
    path = container.argv[-1] if container.argv else ""
    if path != SCRIPT_IN_CONTAINER and not path.endswith(".sh"):
        return True
    targets = [mount.target.rstrip("/") for mount in container.mounts]
    return any(path == target or path.startswith(f"{target}/") for target in targets)


def _not_run(unit: Unit) -> bool:
    ended = unit.active_state in ("failed", "activating") or unit.sub_state == "auto-restart"
    there = unit.exec_start_exists is not False and not unit.ghosts
    return ended and there and unit.exit_kind != "killed" and unit.exit_status in NOT_RUN


def _ghost(
    node: Node, summary: str, evidence: str, remedy: str, *, warn: bool = False, cause: str = ""
) -> Violation:
    return violation(
        "script-ghost",
        node.name,
        summary,
        evidence=evidence,
        remedy=remedy,
        severity="warn" if warn else None,
        cause=cause,
    )


LAUNCH_SCRIPT_GATES = (script_ghost,)


# The gate before a deploy that starts what is installed, and does not write it.


@per_node
def as_installed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What is installed answers where and as the plan says, or the proof would ask another model.

    After `serve --data recipe=X` a plain restart starts X and would ask for the inventory's recipe.
    """
    if node.role != "head":
        return
    texts = {file.path: file.content for file in require(snapshot.files, "files")}
    installed = endpoint_in(texts.get(NODE_PATH) or "")
    wanted = endpoint(plan.rig, plan.recipe)
    # Where nothing of ours is installed, other gates say so.
    if installed is None or (installed.url, installed.model) == (wanted["url"], wanted["model"]):
        return
    yield violation(
        "other-recipe",
        node.name,
        f"{node.name} is set up to serve {installed.model}, not {wanted['model']} "
        f"(recipe {plan.recipe.name})",
        evidence=f"{NODE_PATH}: {installed.model} at {installed.url}; this run would ask "
        f"{wanted['model']} at {wanted['url']}",
        remedy=f"name what was served: --data recipe=NAME; or {deploy_command(plan, 'serve')}",
    )


INSTALLED_RECIPE_GATES = (as_installed,)
