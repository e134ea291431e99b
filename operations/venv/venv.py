"""A version of an engine in a venv: measured, installed, patched, checked, switched to, pruned.

Each operation takes `version`, which is None where the wanted version is the active one already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from facts.endpoint.completion import Answer, Endpoint, ask
from facts.endpoint.throughput import NotMeasured
from facts.endpoint.throughput import measure as measure_rate
from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from operations.change.apply import Steps
from operations.change.command import told
from operations.change.node_call import StepFailed, call
from operations.change.progress import call_with_progress
from operations.change.run import Run
from operations.change.steps import unit_step
from operations.engine.own_answer import NotOurs, ask_ours
from operations.engine.wait_ready import EngineDied, wait_for_answer
from operations.venv.patches import run_tool
from schema.desired.plan import UNIT
from schema.observed.venv_versions import VenvPrunePlan

INSTALL_TIMEOUT_S = 3600
CHECK_TIMEOUT_S = 240
PRUNE_TIMEOUT_S = 600
ASK_S = 30.0
MIB = 1 << 20
TRIES = 2


@dataclass(frozen=True)
class Version:
    """A version of a venv's package. `folder` is where it lies or will lie, `link` where the venv's
    path leads now (None: it is a folder itself).
    """

    venv: str
    package: str
    number: str
    folder: str
    link: str | None


@dataclass(frozen=True)
class PatchSteps:
    """What brings the recipe's patches into force in a venv: files, then tools as node takes them,
    each with its time limit in seconds.
    """

    steps: Steps
    tools: Collection[tuple[Mapping[str, Any], int]]


def _command(
    run: Run, label: str, line: str, work: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """Shows what is to be done, and yields the command that does it and says what came of it."""
    reporter = host
    run.show_once(host, label, partial(host.log, line))
    yield run.step(label, [host.name], lambda: reporter.log_styled(work(), fg="green"))


def rounds_of(run: Run) -> tuple[float, ...]:
    """The rounds that the change keeps of the engine before it, tokens a second."""
    kept = run.context.get("rounds")
    return tuple(float(rate) for rate in kept) if isinstance(kept, list | tuple) else ()


def _keep(run: Run, rounds: Sequence[float]) -> None:
    run.context["rounds"] = [round(rate, 2) for rate in rounds]


def _ours(run: Run, endpoint: Endpoint) -> Answer:
    """An answer of our own engine on this host, or why there is none."""
    name = host.name
    try:
        return ask_ours(real(run.state), name, [name], endpoint, lambda where: ask(where, ASK_S))
    except NotOurs as error:
        return Answer(False, str(error))


@operation()
def measure(
    run: Run, needed: bool, endpoint: Endpoint, is_up: bool, recorded: Sequence[float]
) -> Generator[FunctionCommand, None, None]:
    """
    Measure what the engine does now; the change keeps it for whoever undoes it.

    + run: the change
    + needed: whether something is changed that is compared with it
    + endpoint: where the engine answers
    + is_up: whether the engine's unit runs
    + recorded: rounds of the last bench, tokens a second, where it cannot be measured now
    """
    if not needed:
        host.noop("no other version comes: nothing to compare with")
        return

    def work() -> str:
        # what a run that was cut off measured, before it stopped the engine
        known = rounds_of(run) or tuple(recorded)
        _keep(run, known)
        answer = _ours(run, endpoint) if is_up else None
        if answer is None or not answer.ok:
            told = f"{median(known):.1f} tok/s, of a bench" if known else "none: nothing to compare"
            return f"the engine does not answer; baseline: {told}"
        try:
            rate = measure_rate(endpoint.held_by_ours())
        except NotMeasured as error:
            return f"the engine answers and could not be measured: {error}"
        _keep(run, rate.each)
        return f"baseline: {rate}"

    yield from _command(run, "baseline", "measure tokens a second, one stream", work)


@operation()
def install(
    run: Run, version: Version | None, pip_args: Collection[str], room_bytes: int
) -> Generator[FunctionCommand, None, None]:
    """
    Install the version beside the one that serves.

    + run: the change
    + version: the version that comes
    + pip_args: what the recipe gives pip
    + room_bytes: how much it may need on the disk, beside
    """
    if version is None:
        host.noop("the version is installed, and active")
        return
    target = run.host(host.name)

    def work() -> str:
        request = {"venv": version.venv, "package": version.package, "version": version.number}
        more = {"pip_args": list(pip_args), "room_bytes": room_bytes}
        answer = call_with_progress(
            run.state, target, "venv install", {**request, **more}, INSTALL_TIMEOUT_S,
            _progress(run, target, request),
        )  # fmt: skip
        left = ", ".join(answer["left_behind"])
        told = f"; not carried over from the former: {left}" if left else ""
        return f"{answer['folder']} is whole after {answer['took_s']:.0f} s{told}"

    line = f"install {version.package} {version.number} into {version.folder}"
    yield from _command(run, "install", line, work)


def _progress(run: Run, target: Host, request: Mapping[str, Any]) -> Callable[[], Iterable[str]]:
    """What an installation is at."""

    def seen() -> list[str]:
        try:
            return list(ask_node(run.state, target, "venv look", dict(request), 30)["working"])
        except AskFailed:
            return []  # the job itself says what is wrong with the host

    return seen


@operation()
def patch(
    run: Run,
    version: Version | None,
    count: int,
    inspect: Callable[[], PatchSteps],
    verify: Callable[[], str],
) -> Generator[FunctionCommand, None, None]:
    """
    Bring the recipe's patches into force in the version, before anything leads there.

    + run: the change
    + version: the version that comes
    + count: how many patches the recipe has
    + inspect: reads the version that is there by then, and says what it lacks; raises StepFailed
    + verify: reads it again and says that all is in force, or raises StepFailed
    """
    if version is None or not count:
        host.noop("the recipe has no patches" if version else "no new version to patch")
        return
    node = host.name

    def work() -> str:
        lacks = inspect()
        if lacks.steps:
            run.apply(node, lacks.steps)
        told = [run_tool(run, node, tool, seconds) for tool, seconds in lacks.tools]
        return "; ".join([verify(), *told])

    line = "bring the recipe's patches into force there"
    yield from _command(run, "patch", line, work)


@operation()
def check(run: Run, version: Version | None) -> Generator[FunctionCommand, None, None]:
    """
    Import the version's package and execute its program.

    + run: the change
    + version: the version that comes
    """
    if version is None:
        host.noop("no new version to execute")
        return
    target, folder, package = run.host(host.name), version.folder, version.package
    line = f"import {package}, {folder}/bin/{package} --version"
    yield from _command(run, "check", line, lambda: check_venv(run.state, target, folder, package))


@operation()
def switch(run: Run, version: Version | None) -> Generator[FunctionCommand, None, None]:
    """
    Make the version the active one, by one rename.

    + run: the change
    + version: the version that comes
    """
    if version is None:
        host.noop("the version is active")
        return
    node = host.name

    def work() -> str:
        run.apply(node, switch_steps(version, run.id))
        return f"{version.venv} leads to {version.folder}"

    line = f"{version.venv}: {version.link or 'a folder'} -> {version.folder}"
    yield from _command(run, "switch", line, work)


def switch_steps(version: Version, change: str) -> Steps:
    """The steps that make the version the active one: one rename.

    A venv that is a folder trades places with a link, and is kept beside the other versions until
    undo trades it back.
    """
    venv, folder = version.venv, version.folder
    if version.link is not None:
        return [{"op": "link", "path": venv, "target": folder, "expect": version.link}]
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

    def work(state: State, host: Host) -> str:
        answer = call(state, host, "venv prune", dict(request), PRUNE_TIMEOUT_S)
        return f"{answer['freed_bytes'] / MIB:.0f} MiB freed"

    yield told(work)


def check_venv(
    state: State, target: Host, venv: str, package: str, imports: bool = True, quick: bool = False
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


def wait_with_retries(run: Run, node: str, endpoint: Endpoint, budget_s: int) -> str:
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
            run.apply(node, [unit_step(UNIT, "restart", reload=False)], 180)
    raise AssertionError("a loop that ends by return or raise")
