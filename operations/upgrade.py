"""The parts of an upgrade that no other deploy has: a version beside, the switch, the proof."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import gevent
from pyinfra import host
from pyinfra.api import FunctionCommand, State, operation

from facts.asking import AskFailed, ask_node
from facts.endpoint import Endpoint
from operations.node import StepFailed, call
from operations.run import Run
from operations.waiting import EngineDied, wait_for_answer
from schema.engine import UNIT

INSTALL_TIMEOUT_S = 3600
CHECK_TIMEOUT_S = 240
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
        run.say(host, line, lambda line=line: reporter.log(line))

    def execute() -> None:
        line = work()
        if line:
            reporter.log_styled(line, fg="green")

    yield run.step(label, [host.name], execute)


def install(run: Run, node: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """node's `venv install`, with progress; StepFailed says why not. No change is opened by it."""
    target = run.host(node)
    job = gevent.spawn(_caught, run.state, target, request)
    look = {key: request[key] for key in ("venv", "package", "version")}
    while job.join(TELL_S) or not job.ready():
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


def _caught(state: State, target: Any, request: Mapping[str, Any]) -> Any:
    """The answer or the StepFailed: gevent prints what a greenlet raises."""
    try:
        return call(state, target, "venv install", dict(request), INSTALL_TIMEOUT_S)
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
