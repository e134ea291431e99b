"""The engine of a rig: its files and unit, its stop and start in order, its proof.

Each operation takes what to do as explicit arguments, shows it once, and yields nothing where
nothing is to do. The steps themselves are node's: journalled, and undone together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.apply import Steps
from operations.change.run import Run
from operations.change.steps import folder_steps as make_folders
from operations.change.steps import unit_step
from schema.desired.plan import ENGINE_FOLDERS, UNIT, Document, EngineSpec
from schema.observed.files import FileState
from schema.observed.units import Unit

# `systemctl stop` returns after TERM (30 s), KILL and docker rm.
UNIT_TIMEOUT_S = 180

# Why nothing is to be written.
AS_RENDERED = "files and unit are as the recipe renders them"


@dataclass(frozen=True)
class Start:
    """What starts an engine that has no unit of ours: node's steps, and the same in words."""

    steps: Steps
    words: str


def file_steps(documents: tuple[Document, ...], files: Mapping[str, FileState]) -> Steps:
    """The steps that make a node's files equal the documents; equal ones are left alone."""
    steps: Steps = []
    for document in documents:
        now = files.get(document.path)
        if now is not None and _equal(document, now):
            continue
        step: dict[str, object] = {
            "op": "file",
            "path": document.path,
            "content": document.content,
            "mode": document.mode,
            "owner": "root",
            "group": "root",
            "expect_sha256": "absent" if now is None or now.sha256 is None else now.sha256,
        }
        if document.path.endswith(".sh"):
            step["validate"] = ["bash", "-n", "{tmp}"]
        steps.append(step)
    return steps


def _equal(document: Document, now: FileState) -> bool:
    # By hash: node masks secrets in the content of files that others cannot read.
    wanted = hashlib.sha256(document.content.encode()).hexdigest()
    owner = (now.uid, now.gid)
    return (now.kind, now.sha256, now.mode, owner) == ("file", wanted, document.mode, (0, 0))


def folder_steps(spec: EngineSpec, files: Mapping[str, FileState], owner: str) -> Steps:
    """Steps that make absent folders: the engine's own, those of the compiled kernels, and bind
    mounts (docker would make them root's). The weights' folder is never made: an empty one would
    hide that they are missing.
    """
    own = make_folders((*ENGINE_FOLDERS, *spec.jit_folders), files)
    return own + make_folders(spec.cache_folders, files, owner=owner)


def unit_steps(unit: Unit | None, files_change: bool) -> Steps:
    """The step that enables the unit and reloads systemd, where one of them is needed."""
    enable = unit is None or unit.enabled != "enabled"
    if not enable and not files_change and not (unit and unit.needs_reload):
        return []
    # Again when its file changes: `enable` adds the links that a new [Install] asks for.
    return [unit_step(UNIT, enabled=True if enable or files_change else None)]


def timer_steps(name: str, timer: Unit | None, files: Collection[str]) -> Steps:
    """The step that enables a timer of ours and has it run as its file says.

    `timer` is what systemd says of it now, `files` are the paths that this run writes.
    """
    changed = any(path.endswith(f"/{name}") for path in files)
    runs = timer is not None and timer.active_state == "active"
    if timer is not None and timer.enabled == "enabled" and runs and not changed:
        return []
    return [unit_step(name, "restart" if runs and changed else "start", enabled=True)]


@operation()
def stop(run: Run, nodes: Collection[str]) -> Generator[FunctionCommand, None, None]:
    """
    Stop the engine's unit on this node, when it is one of `nodes`.

    + run: the change
    + nodes: the nodes on which the unit is to be stopped in this step
    """
    yield from _set_active(run, nodes, "stop")


@operation()
def start(
    run: Run, nodes: Collection[str], how: Start | None = None
) -> Generator[FunctionCommand, None, None]:
    """
    Start the engine on this node, when it is one of `nodes`.

    + run: the change
    + nodes: the nodes on which the engine is to be started in this step
    + how: what starts it there, where that is not its unit
    """
    yield from _set_active(run, nodes, "start", how)


def _set_active(
    run: Run, nodes: Collection[str], active: str, how: Start | None = None
) -> Generator[FunctionCommand, None, None]:
    if host.name not in nodes:
        host.noop(f"no {active} of the engine here in this step")
        return
    node = host.name
    box = " and its container" if run.plan.recipe.container else ""
    words = how.words if how else f"{active} {UNIT}{box}"
    steps = how.steps if how else [unit_step(UNIT, active, reload=False)]
    run.show_once(host, active, lambda: host.log(words))

    def work() -> None:
        run.touch(node)
        if active == "stop":
            run.announce()
            run.down.add(node)
        run.apply(node, steps, UNIT_TIMEOUT_S)
        if active == "start":
            run.down.discard(node)

    yield run.step(f"{active}:{','.join(sorted(nodes))}", nodes, work)


@operation()
def prove(
    run: Run, needed: bool, check: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """
    End the change by a proof; without one the rig goes back to what it was.

    + run: the change
    + needed: whether anything was changed that is to be proven
    + check: proves it and says how, or raises StepFailed
    """
    if not needed and not run.resumed:
        host.noop("nothing was changed")
        return
    reporter = host

    def work() -> None:
        proof = check()
        run.new_way_in()
        run.proven = True
        run.close("COMMITTED", proof)
        reporter.log_styled(f"{proof}; change {run.id} COMMITTED", fg="green")

    run.show_once(host, "prove", lambda: host.log("wait for the proof, then bless the change"))
    yield run.step("prove", [host.name], work)


@operation()
def for_a_while(
    run: Run, words: str, work: Callable[[], None]
) -> Generator[FunctionCommand, None, None]:
    """
    Serve otherwise for a while, as one change that always ends by its undo.

    + run: the change
    + words: what is served meanwhile
    + work: makes the change's steps on all nodes, or raises StepFailed
    """
    reporter = host

    def whole() -> None:
        work()
        run.give_back(reporter)

    run.show_once(host, "for a while", lambda: host.log(f"{words}; then back to what serves now"))
    yield run.step("for a while", [host.name], whole)
