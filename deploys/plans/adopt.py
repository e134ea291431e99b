"""The plan of the runbook adopt: what it inspects, plans and proves."""

from __future__ import annotations

import datetime
import getpass
import ipaddress
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gevent
from pyinfra import host, logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans import serve
from deploys.plans.cli import ROOT, own_folder
from deploys.plans.rig import (
    Procedure,
    Work,
    data_of,
    dry_run,
    gated,
    inventory_name,
    once_a_run,
    operator_data,
    refusal_line,
)
from facts.looks import FormerFact
from facts.node import Snapshot, Together, ask_each, observe, real
from gates.core import apply_waivers, blocking
from gates.gate_sets import ROOM, TAKING, check
from operations import engine as operations_engine
from operations.adopt import CONTEXT, Served, ask_former, require_room
from operations.apply import Steps, apply, unit_step
from operations.run import StepFailed
from schema import load
from schema.adoption import (
    KINDS,
    NOT_SET,
    OWN,
    LiveNode,
    Row,
    Written,
    compare,
    usual_home,
    written,
)
from schema.core import SpecError
from schema.hardware import Former, FormerContainer, FormerEngine, Supervisor
from schema.keys import AdoptData
from schema.load import COMMAND_LINE, host_data
from schema.plan import Plan
from schema.snapshot import Gpus, Link, Network, NodeSnapshot, Unreadable
from schema.vllm import parse_command_line

# Looks at the hosts of an inventory that may know nothing of an engine yet.

# What a rig's inventory has to say and this one need not: enough for the type of --data.
_OPEN = {"role": "head", "lan_address": "127.0.0.1", "rig": "rig", "recipe": "none"}


@dataclass(frozen=True)
class Seen:
    """What every host said, by name; an `Unreadable` says why it could not be asked."""

    formers: Mapping[str, Former | Unreadable]
    snapshots: Mapping[str, NodeSnapshot | Unreadable]

    @property
    def silent(self) -> dict[str, str]:
        """The hosts that could not be asked, with the reason."""
        return {n: f.unreadable for n, f in self.formers.items() if isinstance(f, Unreadable)}

    def former(self, name: str) -> Former:
        """What one host said; DeployError with the reason when it could not be asked."""
        found = self.formers[name]
        if isinstance(found, Unreadable):
            raise DeployError(f"{name} could not be looked at: {found.unreadable}")
        return found

    def snapshot(self, name: str) -> NodeSnapshot:
        """One host's snapshot; DeployError with the reason when it could not be asked."""
        found = self.snapshots[name]
        if isinstance(found, Unreadable):
            raise DeployError(f"{name} could not be looked at: {found.unreadable}")
        return found


@once_a_run
def asked() -> AdoptData:
    """The checked --data; the inventory's own keys are not asked for. DeployError says what not."""
    own_folder()
    typed = state.inventory.get_override_data()
    given = {**_OPEN, "ssh_user": getpass.getuser(), **typed}
    try:
        return host_data("", given, dict.fromkeys(typed, COMMAND_LINE), AdoptData)
    except SpecError as error:
        raise DeployError(str(error).replace("--data: host : ", "--data: ")) from None


@once_a_run
def look() -> Seen:
    """Asks all hosts at the same time; read-only."""
    asked = Together(state, [host.name for host in state.inventory])
    formers, snapshots = asked.add(FormerFact()), asked.add(Snapshot())
    return Seen(formers(), snapshots())


def host_values(name: str) -> dict[str, object]:
    """A host's merged data, as the inventory and group_data in use say it."""
    return data_of(state.inventory.get_host(name))[0]


def chosen(seen: Seen, name: str, port: int | None) -> FormerEngine:
    """The one engine of a host that is meant; DeployError when there is none, or one of several."""
    engines = seen.former(name).engines
    if len(engines) > 1 and port is not None:
        engines = tuple(e for e in engines if e.port == port and e.is_head)
    if len(engines) == 1:
        engine = engines[0]
        try:
            parse_command_line(engine.argv)
        except ValueError as error:
            raise DeployError(f"{name}: the command line of pid {engine.pid}: {error}") from None
        return engine
    if not engines:
        raise DeployError(f"no vLLM runs on {name}: start it as you do, then look again")
    told = ", ".join(f"pid {e.pid} at port {e.port}" for e in engines)
    raise DeployError(
        f"{name} runs {len(engines)} engines ({told}): name one, "
        f"pyinfra {inventory_name()} deploys/adopt.py -y --data port={engines[0].port}"
    )


def container_of(former: Former, engine: FormerEngine) -> FormerContainer | None:
    """The container that an engine runs in, or None."""
    return next((box for box in former.containers if box.name == engine.container), None)


# Tells what serves on each host, who starts it, and what comes back at the next boot.

_LINE = 400


@once_a_run
def report_adopt(seen: Seen) -> None:
    """Prints what was seen, a paragraph a host; DeployError when a host could not be asked."""
    for name, former in seen.formers.items():
        if isinstance(former, Former):
            for line in lines(former):
                logger.info(f"[{name}] {line}")
    if seen.silent:
        told = "; ".join(f"{name}: {why}" for name, why in seen.silent.items())
        raise DeployError(f"a rig is taken whole, and not every node could be looked at: {told}")


def lines(former: Former) -> Iterator[str]:
    """What one host runs, in lines for a person."""
    if not former.engines and not former.supervisors:
        yield (
            "no vLLM was found here by other means than rigbook, in what could be looked at"
            if former.unread
            else "no vLLM runs here by other means than rigbook, and nothing would start one"
        )
    for engine in former.engines:
        yield from _engine(engine, container_of(former, engine))
    if former.supervisors and not former.engines:
        yield "no vLLM was found running" if former.unread else "no vLLM runs now"
    for row in former.supervisors:
        yield f"started by {supervisor(row)}: {row.evidence[:_LINE]}"
    if former.engines or former.supervisors:
        again = [row.name for row in former.supervisors if row.starts_at_boot]
        none = f"nothing{' of what could be looked at' if former.unread else ''} starts it"
        yield f"at the next boot: {', '.join(again) or none}"
    for box in former.containers:
        if box.auto_remove:
            yield f"lost when it stops: container {box.name} (--rm), with all that was put into it"
    for text in former.unread:
        yield f"not looked at: {text}"


def _engine(engine: FormerEngine, box: FormerContainer | None) -> Iterator[str]:
    ways = {
        "main": f"as the main process of container {engine.container}",
        "exec": f"by docker exec in container {engine.container}",
        "pod": f"in pod {engine.container}",
        "host": f"in {engine.venv or engine.exe}",
    }
    yield (
        f"vLLM: pid {engine.pid} {ways[engine.inside_of]}, rank {engine.node_rank}, "
        + (f"port {engine.port}" if engine.is_head else "headless")
        + f", as {engine.user or engine.uid}"
    )
    yield f"  {shlex.join(engine.argv)}"
    image_env = box.image_env if box else {}
    own = {n: v for n, v in engine.env.items() if not OWN.match(n) and image_env.get(n) != v}
    if own:
        yield "  " + " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
    if box is not None:
        content = box.digests[0] if box.digests else f"{box.image_id[:19]}, no registry's digest"
        yield f"  image {box.image} = {content}"
        for mount in box.mounts:
            only = " (read-only)" if mount.read_only else ""
            yield f"  mount {mount.source} at {mount.target}{only}"
        if box.changed:
            yield f"  put into the container by hand: {', '.join(box.changed)}"


def supervisor(row: Supervisor) -> str:
    """A supervisor by kind, name and state."""
    if row.kind == "unit":
        states = [row.enabled, row.active, row.restart and f"Restart={row.restart}"]
        return f"unit {row.name} ({', '.join(filter(None, states))})"
    kinds = {"container-policy": "docker's restart policy of", "compose": "compose project",
             "cron": "crontab", "pod": "Deployment", "shell": "hand, pid"}  # fmt: skip
    return f"{kinds[row.kind]} {row.name}"


def next_command(*data: str) -> str:
    """The command line of adopt with this inventory."""
    more = "".join(f" --data {item}" for item in data)
    return f"pyinfra {inventory_name()} deploys/adopt.py -y{more}"


# Tells how what a recipe renders differs from what runs, flag by flag.

_SHOWN = 200


def differences(plan: Plan, seen: Seen, port: int | None = None) -> dict[str, list[Row]]:
    """Every flag, variable, mount and option of each node's engine beside the plan's, by node; a
    node without an engine is left out. DeployError where a node has several and no `port` says
    which.
    """
    found = {}
    for node in plan.rig.nodes:
        former = seen.former(node.name)
        if former.engines:
            engine = chosen(seen, node.name, port)
            found[node.name] = compare(plan, node.name, engine, container_of(former, engine))
    return found


def tell_prove(plan: Plan, seen: Seen, rows: Mapping[str, Sequence[Row]]) -> None:
    """Prints the counts of what is the same, and a line for each difference."""
    for name, found in rows.items():
        same = [row for row in found if row.verdict == "same"]
        counts = ", ".join(f"{sum(row.kind == kind for row in same)} {kind}s" for kind in KINDS)
        secret = [f"{row.kind} {row.name}" for row in found if row.verdict == "secret"]
        logger.info(f"[{name}] the recipe renders the same: {counts}")
        if secret:
            logger.info(f"[{name}] secrets, by name alone: {', '.join(secret)}")
        differs = [row for row in found if row.verdict == "differs"]
        headless = name != plan.rig.head.name
        for row in differs:
            note = " (no client asks this rank)" if headless and _for_clients(row) else ""
            logger.warning(
                f"[{name}] {row.kind} {row.name} differs: it runs with {row.live[:_SHOWN]}, the "
                f"recipe renders {row.ours[:_SHOWN]}{note}"
            )
        if not differs:
            logger.info(f"[{name}] nothing differs")
        for engine in seen.former(name).engines:
            program = parse_command_line(engine.argv).program
            if "serve" not in program:
                logger.info(f"[{name}] started as {' '.join(program)}; rigbook starts the same "
                            "server as `vllm serve`")  # fmt: skip


def _for_clients(row: Row) -> bool:
    """A flag of the HTTP server, which a rank without one is often started without."""
    return row.kind == "flag" and row.live == NOT_SET and row.name in _FOR_CLIENTS


_FOR_CLIENTS = ("host", "port", "served_model_name", "reasoning_parser", "tool_call_parser",
                "enable_auto_tool_choice", "chat_template")  # fmt: skip


# What ends a former setup on one node, as node's steps, and what cannot be ended with a way back.
#
# Pure. First what would start the engine again, then what runs it: in between it goes on serving.

# A unit that neither runs nor comes back is left as it is.
_DOWN = ("inactive", "failed")
_ENABLED = ("enabled", "enabled-runtime")


def refusals(former: Former) -> Iterator[str]:
    """Why the former setup of a node is not taken over, each with what to do; none: it may be."""
    yield from (f"not all could be looked at: {line}" for line in former.unread)
    if len(former.engines) > 1:
        which = ", ".join(f"pid {e.pid} on port {e.port}" for e in former.engines)
        yield (
            f"{len(former.engines)} engines run here ({which}), and a rig has one recipe: stop "
            "what this rig is not to serve, then run it again"
        )
    for row in former.supervisors:
        if row.kind == "pod" and row.uid is None:
            yield f"{row.evidence}: what made it has to end it: kubectl describe pod {row.name}"
    boxes = {box.name: box for box in former.containers}
    for engine in former.engines:
        box = boxes.get(engine.container or "")
        if engine.inside_of == "main" and box and box.auto_remove and not _units(former):
            yield (
                f"container {box.name} was made with --rm: a stop removes it, and nothing could "
                "bring it back; make it anew without --rm, then run it again"
            )


def _scale(row: Supervisor) -> dict[str, object]:
    """The step that leaves a Deployment no pod; undo gives it those that it had."""
    return {
        "op": "kube", "kubectl": "auto", "namespace": row.namespace, "deployment": row.deployment,
        "container": row.template_container, "replicas": 0, "uid": row.uid,
        "resource_version": row.resource_version,
    }  # fmt: skip


def grace_s(former: Former) -> float:
    """How long the pods of a former setup may take to end, in seconds."""
    return max((row.grace_s for row in former.supervisors if row.kind == "pod"), default=0.0)


def release_steps(former: Former) -> Steps:
    """The steps after which nothing would start the engine again; it goes on running."""
    steps: Steps = []
    for row in _units(former):
        steps += [unit_step(name, "stop", enabled=False) for name in row.triggered_by]
        if row.enabled in _ENABLED:
            steps.append(unit_step(row.name, enabled=False, reload=False))
    steps += [
        {"op": "restart_policy", "container": name, "policy": "no"}
        for name in _names(row.name for row in former.supervisors if row.kind == "container-policy")
    ]
    lines: dict[str, list[dict[str, object]]] = {}
    for row in former.supervisors:
        if row.kind == "cron":
            lines.setdefault(str(row.file), []).append({"line": row.line, "text": row.text})
    return steps + [{"op": "crontab", "path": path, "lines": rows} for path, rows in lines.items()]


def end_steps(former: Former) -> Steps:
    """The steps that end the engine: its units, its containers, and what was started by hand."""
    steps: Steps = [
        unit_step(row.name, "stop", reload=False) for row in _units(former) if _runs(row)
    ]
    steps += [_scale(row) for row in former.supervisors if row.kind == "pod"]
    of_compose = (n for row in former.supervisors if row.kind == "compose" for n in row.containers)
    main = (str(e.container) for e in former.engines if e.inside_of == "main")
    running = {box.name for box in former.containers if box.state in ("running", "restarting")}
    by_hand = {engine.container for engine in former.engines if engine.inside_of == "exec"}
    steps += [
        {"op": "container", "container": name}
        for name in _names((*of_compose, *main))
        if name in running and name not in by_hand
    ]
    for engine in former.engines:
        if engine.inside_of == "exec":
            steps.append({"op": "former_engine", "container": engine.container})
        elif engine.inside_of == "host" and not _has_unit(former, engine):
            process = {"pid": engine.pid, "start_ticks": engine.start_ticks}
            steps.append({"op": "former_engine", **process})
    return steps


def who(former: Former) -> str:
    """Who runs the engine, in words: `unit vllm-ds4.service, container vllm_ds4`."""
    kinds = {"unit": "unit", "cron": "crontab", "compose": "compose project",
             "pod": "Deployment"}  # fmt: skip
    awake = {row.name for row in _units(former)}
    rows = [
        f"{kinds[row.kind]} {row.name}"
        for row in former.supervisors
        if row.kind in kinds and (row.kind != "unit" or row.name in awake)
    ]
    # a pod has another name each time
    boxes = [f"container {e.container}" for e in former.engines
             if e.container and e.inside_of != "pod"]  # fmt: skip
    pids = [f"pid {e.pid}" for e in former.engines if not e.container and not rows]
    return ", ".join(_names((*rows, *boxes, *pids)))


def _units(former: Former) -> list[Supervisor]:
    """The units that run or come back."""
    found = (row for row in former.supervisors if row.kind == "unit")
    return [row for row in found if row.starts_at_boot or _runs(row)]


def _runs(row: Supervisor) -> bool:
    """Whether a unit is up, or is started again and again."""
    return not (row.active or "").startswith(_DOWN)


def _has_unit(former: Former, engine: FormerEngine) -> bool:
    return any(row.name == engine.unit for row in _units(former))


def _names(found: Iterator[str] | tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(found))


# adopt --data take=true: a rig that serves by other means is handed over as one change.
#
# What would start the former engine is taken away while it serves; then it is ended, ours is
# started
# and proven. Without a real answer of ours everything goes back, and the former engine answers
# again.

# For an answer of the former engine, while it still serves.
ASK_S = 30.0
# Memory of a GPU is free half a second after its process is gone; a port lingers a little longer.
ROOM_S = 60.0
POLL_S = 2.0
# Which files lie in a container's own layer is no matter here, and costs docker its time.
BRIEF = '{"brief": true}'
# The codes that may be waived, and why.
Waive = tuple[tuple[str, ...], str | None]


@dataclass(frozen=True)
class Taking:
    """The work of one take-over: by node the steps that end the former setup, and serve's work."""

    end: Mapping[str, Steps]
    configure: Mapping[str, Steps]
    serve: Work
    by: str
    waive: Waive
    room_s: float = ROOM_S

    @property
    def to_end(self) -> frozenset[str]:
        """The nodes on which something is to be ended."""
        return frozenset(name for name, steps in self.end.items() if steps)

    @property
    def to_configure(self) -> frozenset[str]:
        """The nodes on which supervisors or files are to be changed."""
        return frozenset(name for name, steps in self.configure.items() if steps)


def over() -> None:
    """Gates, plans and does the take-over of the rig in context; called in deploy code."""
    rig = gated(
        "adopt", TAKING, revert=serve.revert, meanwhile=serve.must_answer, more=serve.findings
    )
    work = plan(rig)
    apply(
        name="Take the engine from who would start it, and write our files",
        run=rig.run,
        label="configure",
        steps=work.configure[host.name],
        members=work.to_configure,
        idle=work.serve.idle,
        before=work.serve.before[host.name],
        notes=work.serve.notes.get(host.name),
    )
    for name, members in (("head", rig.nodes.head), ("workers", rig.nodes.workers)):
        apply(
            name=f"End the former engine: {name}",
            run=rig.run,
            label=f"end {name}",
            steps=work.end[host.name] if host.name in members else [],
            members=work.to_end & members,
            idle="no former engine runs here",
        )
    if rig.at_head:
        require_room(
            name="Room for our engine",
            run=rig.run,
            needed=bool(work.to_end),
            check=partial(_room, rig, work.waive, work.room_s),
        )
    operations_engine.start(name="Start the workers", run=rig.run, nodes=work.serve.start.workers)
    operations_engine.start(name="Start the head", run=rig.run, nodes=work.serve.start.head)
    if rig.at_head:
        operations_engine.prove(
            name="A real chat completion of our engine",
            run=rig.run,
            needed=work.serve.needs_proof or bool(work.to_end),
            check=lambda: _proof(rig, work),
        )


def _proof(rig: Procedure, work: Taking) -> str:
    said = serve.verify(rig, work=work.serve)
    return f"{said}; taken over from {work.by}" if work.by else said


@once_a_run
def plan(rig: Procedure) -> Taking:
    """The work, planned and told once; DeployError where the rig is not to be taken over."""
    former, data = look_again(rig.plan), operator_data()
    engines = [engine for found in former.values() for engine in found.engines]
    ours = serve.plan(rig)
    by = "; ".join(f"{name}: {words}" for name, found in former.items() if (words := who(found)))
    releases = {name: release_steps(found) for name, found in former.items()}
    ends = {name: end_steps(found) for name, found in former.items()}
    if not any([*releases.values(), *ends.values()]) and not rig.run.resumed:
        if ours.start.all:
            raise DeployError(
                "nothing was changed: no vLLM runs on this rig that rigbook did not start, and "
                f"nothing would start one; start it: pyinfra {inventory_name()} deploys/serve.py -y"
            )
        logger.info("    nothing to take over: the engine is rigbook's own")
    if engines:
        seen = Seen(former, {})
        tell_prove(rig.plan, seen, differences(rig.plan, seen))
        served = _served(rig.plan, former, by)
        answer = ask_former(real(state), rig.plan, served, ASK_S)
        logger.info(f"    serves now: {by}: {answer.detail}")
        # one that was begun by a run that died keeps what that one saw
        answered = answer.ok or answer.alive
        rig.run.context.setdefault(CONTEXT, asdict(replace(served, answered=answered)))
    kept: Any = rig.run.context.get(CONTEXT)
    return Taking(
        end=ends,
        configure={name: [*releases[name], *ours.steps[name]] for name in former},
        serve=ours,
        by=by if kept is None else str(kept["by"]),
        waive=(data.waive, data.reason),
        room_s=ROOM_S + max((grace_s(found) for found in former.values()), default=0.0),
    )


def look_again(plan: Plan) -> dict[str, Former]:
    """What runs by other means, by node; DeployError names what keeps it from being taken over."""
    seen = ask_each(real(state), plan, FormerFact(), dict.fromkeys(plan.requests, BRIEF))
    lines: list[str] = []
    found: dict[str, Former] = {}
    for name, former in seen.items():
        if isinstance(former, Unreadable):
            lines.append(f"{name}: {former.unreadable}")
            continue
        found[name] = former
        lines += [f"{name}: {line}" for line in refusals(former)]
    if lines:
        raise DeployError(f"nothing was changed: not taken over: {'; '.join(lines)}")
    return found


def _served(plan: Plan, former: Mapping[str, Former], by: str) -> Served:
    """Where the former engine answers: the head of those that run, else as the recipe says."""
    recipe = plan.recipe
    for name, found in former.items():
        for one in found.engines:
            if one.is_head:
                model = _option(one.argv, "--served-model-name") or recipe.served_model_name
                return Served(name, one.port, model, by, pod=_pod(found, one))
    return Served(plan.rig.head.name, recipe.port, recipe.served_model_name, by)


def _pod(found: Former, engine: FormerEngine) -> dict[str, str] | None:
    """Whose pod has a network of its own, in which the engine is to be asked; None: the host's."""
    box = container_of(found, engine)
    row = next((row for row in found.supervisors if row.kind == "pod" and row.deployment), None)
    if engine.inside_of != "pod" or row is None or box is None or box.network_mode == "host":
        return None
    return {
        "namespace": str(row.namespace),
        "deployment": str(row.deployment),
        "container": str(row.template_container),
    }


def _option(argv: tuple[str, ...], name: str) -> str | None:
    """The first value of an option, as `--name value` or `--name=value`."""
    for n, word in enumerate(argv):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            return value if equals else next(iter(argv[n + 1 : n + 2]), None)
    return None


def _room(rig: Procedure, waive: Waive, limit_s: float) -> str:
    """A line once port and memory are free on every node; StepFailed names what is not."""
    started = time.monotonic()
    while True:
        found = check(rig.plan, observe(state, rig.plan, fresh=True), ROOM)
        left, _ = apply_waivers(found, *waive)
        took = time.monotonic() - started
        if not blocking(left):
            return f"port and memory are free after {took:.0f} s"
        if took > limit_s:
            line = refusal_line(left).removeprefix("nothing was changed: ")
            raise StepFailed(f"after {took:.0f} s: {line}")
        gevent.sleep(POLL_S)


# Writes inventory, group data and recipe of what serves, once they were loaded and compared.


@once_a_run
def write(seen: Seen, name: str | None, port: int | None) -> None:
    """Writes the files of the rig `name` and tells what differs; without a name, how to go on.

    DeployError: a file of that name is there, a node runs no engine or several, or what was found
    makes no recipe that loads; nothing was written then.
    """
    if name is None:
        _say_next(seen, port)
        return
    taken = [path for path in _paths(name) if (ROOT / path).exists()]
    if taken:
        raise DeployError(
            f"{taken[0]} is there already, and nothing is overwritten: choose another name, "
            + next_command("write=OTHER")
        )
    nodes = live_nodes(seen, port)
    by = {n: [supervisor(row) for row in seen.former(n).supervisors] for n in seen.formers}
    ssh = {node.name: _ssh(host_values(node.name)) for node in nodes}
    made = written(name, nodes, by, ssh, datetime.date.today().isoformat())
    plan = loaded(made, name)
    if dry_run():
        for path, text in made.files.items():
            logger.info(f"would write {path}:\n{text}")
    else:
        save_write(made, ROOT)
        logger.info(f"wrote {', '.join(made.files)}")
    for need in made.needs:
        logger.warning(f"needs you: {need}")
    tell_prove(plan, seen, differences(plan, seen, port))
    logger.info(f"next: read catalog/recipes/{name}.yaml, then "
                f"pyinfra inventory/{name}.py deploys/adopt.py -y")  # fmt: skip


def save_write(made: Written, root: Path) -> None:
    """Writes the files below the project's root; FileExistsError where one is there."""
    for path, text in made.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        with (root / path).open("x", encoding="utf-8") as file:
            file.write(text)


def _paths(name: str) -> tuple[str, ...]:
    return (f"inventory/{name}.py", f"group_data/{name}.py", f"catalog/recipes/{name}.yaml")


def _say_next(seen: Seen, port: int | None) -> None:
    """How to go on: with a recipe, what differs from it; without one, how to write it."""
    if not any(former.engines for former in map(seen.former, seen.formers)):
        return
    hosts = {host.name: host_values(host.name) for host in state.inventory}
    if not all(values.get("recipe") for values in hosts.values()):
        logger.info(f"next: {next_command('write=NAME')} writes inventory, group_data and recipe")
        return
    try:
        plan = load.plan(hosts, None, ROOT, ("adopt",))
    except SpecError as error:
        raise DeployError(f"{inventory_name()} does not load: {error}") from None
    if plan.deployment is None:
        tell_prove(plan, seen, differences(plan, seen, port))
        logger.info(f"next: {next_command('take=true')} hands the rig over, with a way back")


def live_nodes(seen: Seen, port: int | None = None) -> list[LiveNode]:
    """The nodes in rank order with all that the files need; DeployError when a node cannot tell."""
    engines = {name: chosen(seen, name, port) for name in seen.formers}
    heads = [name for name, engine in engines.items() if engine.is_head]
    ranks = sorted(engine.node_rank for engine in engines.values())
    if len(heads) != 1 or ranks != list(range(len(ranks))):
        told = ", ".join(f"{n} rank {e.node_rank}" for n, e in engines.items())
        raise DeployError(
            f"these hosts are no one rig ({told}): an inventory holds the nodes of one model, with "
            "the ranks 0, 1, 2 …"
        )
    join = parse_command_line(engines[heads[0]].argv).join
    nodes = []
    for name, engine in sorted(engines.items(), key=lambda item: item[1].node_rank):
        snapshot, given = seen.snapshot(name), host_values(name)
        links = snapshot.network.links if isinstance(snapshot.network, Network) else ()
        lan = _lan_address(name, given, links)
        link, fabric = (None, None)
        if len(engines) > 1:
            link, fabric = _fabric(given, links, str(join.get("master_addr", "")), lan)
        user = str(given.get("ssh_user") or getpass.getuser())
        nodes.append(LiveNode(
            name=name,
            ssh_user=user,
            home=str(given.get("home") or usual_home(user)),
            lan_address=lan,
            fabric_address=fabric,
            fabric_device=link.name if link else None,
            fabric_mtu=link.mtu if link else 9000,
            has_gpu=_has_gpu(snapshot),
            engine=engine,
            container=container_of(seen.former(name), engine),
        ))  # fmt: skip
    return nodes


def _has_gpu(snapshot: NodeSnapshot) -> bool:
    gpus = snapshot.gpus
    return isinstance(gpus, Gpus) and bool(gpus.gpus) and not gpus.stand_in


def _is_address(text: object) -> bool:
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _plain(link: Link) -> list[str]:
    """A link's addresses without their prefix lengths, IPv4 first."""
    found = [address.partition("/")[0] for address in link.addresses]
    return sorted(found, key=lambda address: ":" in address)


def _lan_address(name: str, given: Mapping[str, object], links: tuple[Link, ...]) -> str:
    """Where the host is reached: as the inventory says, else its first address."""
    for text in (given.get("lan_address"), given.get("ssh_hostname"), name):
        if text and _is_address(text):
            return str(text)
    own = [a for link in links if link.name != "lo" and not link.name.startswith(("docker", "veth"))
           for a in _plain(link) if not a.startswith("fe80:")]  # fmt: skip
    if not own:
        raise DeployError(f"{name}: no address of it is known: lan_address: is missing in "
                          f"{inventory_name()}")  # fmt: skip
    return own[0]


def _fabric(
    given: Mapping[str, object], links: tuple[Link, ...], master: str, lan: str
) -> tuple[Link | None, str]:
    """The link between the nodes and this node's address on it: as the inventory says, else the one
    that holds the head's --master-addr, or an address of its network.
    """
    wanted = str(given.get("fabric_address") or "")
    for link in links:
        for text in link.addresses:
            address = text.partition("/")[0]
            if address == wanted or (not wanted and _same_network(text, master)):
                return link, address
    return None, wanted or lan


def _same_network(interface: str, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_interface(interface).network
    except ValueError:
        return False


def _ssh(values: Mapping[str, object]) -> dict[str, object]:
    """The keys that pyinfra connects by."""
    return {k: v for k, v in values.items() if k.startswith("ssh_") and v is not None}


def loaded(made: Written, name: str) -> Plan:
    """The plan that the files make, read back by the loader from a folder of their own."""
    hosts = _run(made.files[f"inventory/{name}.py"])[name]
    common = _run(made.files[f"group_data/{name}.py"])
    assert isinstance(hosts, list)
    with tempfile.TemporaryDirectory(prefix="rigbook-adopt-") as folder:
        path = Path(folder) / f"catalog/recipes/{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(made.files[f"catalog/recipes/{name}.yaml"], encoding="utf-8")
        try:
            return load.plan({n: {**common, **own} for n, own in hosts}, None, Path(folder), ())
        except SpecError as error:
            raise DeployError(f"what runs makes no recipe that loads, so nothing was written: "
                              f"{'; '.join(error.problems)}") from None  # fmt: skip


def _run(text: str) -> dict[str, object]:
    """The names that a file of ours defines."""
    found: dict[str, object] = {}
    exec(compile(text, "<adopt>", "exec"), found)
    return {k: v for k, v in found.items() if not k.startswith("__") and not callable(v)}
