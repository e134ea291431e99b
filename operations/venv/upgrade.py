"""The parts of an upgrade that no other deploy has: a version beside, the switch, the proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import gevent
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from facts.rignode.call import AskFailed, ask_node
from facts.endpoint.completion import Endpoint
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from operations.engine.wait_ready import EngineDied, wait_for_answer
from schema.desired.plan import UNIT
from schema.observed.venv_versions import VenvPrunePlan

INSTALL_TIMEOUT_S = 3600
CHECK_TIMEOUT_S = 240
PRUNE_TIMEOUT_S = 600
MIB = 1 << 20
TELL_S = 10.0
TRIES = 2


@operation()
def task(
    run: Run, label: str, plan: Sequence[str], work: Callable[[], str], idle: str
) -> Generator[FunctionCommand, None, None]:
    """
    One step of a run on this host; its failure ends the run and brings the rig back.

    + run: the change
    + label: the step's name
    + plan: what it will do, a line each; nothing is done without one
    + work: does it and gives the line to tell (or nothing), or raises StepFailed
    + idle: why nothing is to do
    """
    if not plan:
        host.noop(idle)
        return
    reporter = host
    for line in plan:
        run.show_once(host, line, lambda line=line: reporter.log(line))

    def execute() -> None:
        line = work()
        if line:
            reporter.log_styled(line, fg="green")

    yield run.step(label, [host.name], execute)


@operation()
def prune(
    request: Mapping[str, Any], found: VenvPrunePlan
) -> Generator[FunctionCommand, None, None]:
    """
    Remove versions that nobody needs; the active one, the former and what a change needs stay.

    + request: what node's `venv prune` takes
    + found: what its dry run told
    """
    for row in found.kept:
        host.log(f"keep {row.path} ({row.version}): {row.why}")
    if not found.removed:
        host.noop("no version to remove")
        return
    for row in found.removed:
        host.log(f"remove {row.path} ({row.version}, {row.bytes / MIB:.0f} MiB): {row.why}")

    def execute(state: State, host: Host) -> bool:
        try:
            answer = call(state, host, "venv prune", dict(request), PRUNE_TIMEOUT_S)
        except StepFailed as error:
            host.log_styled(str(error), fg="red")
            return False
        host.log_styled(f"{answer['freed_bytes'] / MIB:.0f} MiB freed", fg="green")
        return True

    yield FunctionCommand(execute, (), {})


def install(run: Run, node: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """node's `venv install`, with progress; StepFailed says why not. No change is opened by it."""
    return _told(run, node, "venv install", request)


def replace(run: Run, node: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """node's `venv replace`, the installation in place; StepFailed says why not.

    It is a step of the run's change: whatever came of it, undo restores the backup.
    """
    run.touched.add(node)
    return _told(run, node, "venv replace", {**request, "change": run.change()})


def _told(run: Run, node: str, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The verb's answer; while it works the operator sees how far it is."""
    target = run.host(node)
    job = gevent.spawn(_caught, run.state, target, verb, request)
    look = {key: request[key] for key in ("venv", "package", "version")}
    began = time.monotonic()
    while job.join(TELL_S) or not job.ready():
        if verb == "venv replace":
            target.log(f"pip works in {look['venv']}: {time.monotonic() - began:.0f} s")
            continue
        try:
            seen = ask_node(run.state, target, "venv look", look, 30)
        except AskFailed:
            continue  # the job itself says what is wrong with the host
        for line in seen["working"]:
            target.log(line)
    answer = job.get()
    if isinstance(answer, StepFailed):
        raise answer
    return dict(answer)


def _caught(state: State, target: Any, verb: str, request: Mapping[str, Any]) -> Any:
    """The answer or the StepFailed: gevent prints what a greenlet raises."""
    try:
        return call(state, target, verb, dict(request), INSTALL_TIMEOUT_S)
    except StepFailed as error:
        return error


def runs(
    state: State, target: Any, venv: str, package: str, imports: bool = True, quick: bool = False
) -> str:
    """A line about a venv whose program was executed; StepFailed when it does not run.

    `quick`: only its interpreter is run.
    """
    request = {
        "venv": venv,
        "package": package,
        "imports": imports,
        "quick": quick,
        "timeout_s": CHECK_TIMEOUT_S // 2,
    }
    try:
        answer = ask_node(state, target, "venv check", request, CHECK_TIMEOUT_S)
    except AskFailed as error:
        raise StepFailed(str(error), error.code) from None
    return f"{answer['venv']}/bin/{package} --version says {answer['said'] or answer['version']}"


def switch_steps(venv: str, link: str | None, folder: str, change: str) -> list[dict[str, object]]:
    """The steps that make `folder` the active version: one rename.

    `link`: where the path leads now. None: it is a folder itself, which trades places with a link
    and is kept beside the other versions, until undo trades it back.
    """
    if link is not None:
        return [{"op": "link", "path": venv, "target": folder, "expect": link}]
    beside = f"{venv.rpartition('/')[0]}/venvs"
    new = f"{beside}/.link-{change}"
    return [
        {"op": "link", "path": new, "target": folder, "expect": "absent"},
        {
            "op": "tree",
            "path": venv,
            "source": new,
            "displaced": f"{beside}/.former-{change}",
            "expect": "present",
        },
    ]


def answers_within(run: Run, node: str, endpoint: Endpoint, budget_s: int) -> str:
    """The detail of a real answer after at most TRIES starts; StepFailed has the last log lines.

    The first start is under way. A crash loop ends here, not at forty.
    """
    for number in range(1, TRIES + 1):
        try:
            return wait_for_answer(run.state, node, [node], endpoint, budget_s).detail
        except EngineDied as error:
            if number == TRIES:
                raise StepFailed(f"{TRIES} starts, and none came to an answer: {error}") from None
            run.host(node).log_styled(f"start {number} of {TRIES}: {error}", fg="yellow")
            step: dict[str, object] = {"op": "unit", "unit": UNIT, "active": "restart"}
            run.apply(node, [step], 180)
    raise AssertionError("a loop that ends by return or raise")
