"""A venv: backup, patches, upgrade."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from facts.endpoint import Answer, Endpoint, ask
from facts.measure import NotMeasured
from facts.measure import measure as measure_rate
from facts.node import AskFailed, TreeBackups, ask_node, fact_of, real
from operations.apply import Steps, told, told_together, unit_step
from operations.engine import EngineDied, NotOurs, ask_ours, wait_for_answer
from operations.run import Run, StepFailed, call, call_with_progress
from schema.artifact import BackupPlan, BackupRow, PrunePlan, VenvPrunePlan
from schema.plan import UNIT

# Patches of an engine's files: written whole as journalled steps, or by a tool of others.

# Compiles without running it; the venv's own Python, because an older one may not know the syntax.
_COMPILES = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"


def file_step(file: Mapping[str, Any], content_base64: str) -> dict[str, object]:
    """The step that gives a file its wanted content; owner and mode stay, an edit in between is
    refused. `file` is node's answer about it (`rignode patch look`).
    """
    step: dict[str, object] = {
        "op": "file",
        "path": file["path"],
        "content_base64": content_base64,
        "mode": file["mode"],
        "owner": file["owner"] or "root",
        "group": file["group"] or "root",
        "expect_sha256": file["sha256"],
    }
    if str(file["path"]).endswith(".py"):
        python = file["python"] or "python3"
        step["validate"] = [python, "-I", "-B", "-S", "-c", _COMPILES, "{tmp}"]
    return step


@operation()
def use_tool(
    run: Run, tool: Mapping[str, Any], members: Collection[str], timeout_s: int
) -> Generator[FunctionCommand, None, None]:
    """
    Run a patch tool; the files that it changes are journalled, its failures end the change.

    + run: the change
    + tool: the tool as `rignode patch tool` takes it
    + members: the nodes on which it has not been run on the tree that is there
    + timeout_s: how long it may take, in seconds
    """
    if host.name not in members:
        host.noop(f"{tool['id']} has been run on what is there")
        return
    here = host
    line = f"run {tool['id']}: {' '.join(tool['argv'])}"
    run.show_once(host, tool["id"], lambda: host.log(line))
    yield run.step(
        f"tool {tool['id']}",
        members,
        lambda: here.log_styled(run_tool(run, here.name, tool, timeout_s), fg="green"),
    )


def run_tool(run: Run, node: str, tool: Mapping[str, Any], timeout_s: int) -> str:
    """Runs a patch tool on a node as a step of the change; what came of it, in a line."""
    run.touch(node)
    request = {"change": run.change(), "tool": dict(tool)}
    answer = call(run.state, run.host(node), "patch tool", request, timeout_s + 300)
    said = answer["said"]
    if said is None:
        return f"{tool['id']}: had been run already"
    return (
        f"{tool['id']}: {said['applied']} applied, {said['skipped']} skipped, {said['failed']} "
        f"failed; {len(answer['files'])} files changed"
    )


# A version of an engine in a venv: measured, installed, patched, checked, switched to, pruned.
#
# Each operation takes `version`, which is None where the wanted version is the active one already.

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
def prune_versions(
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


# Backups of an installation on a host: made, read back, pruned. node does each of them whole.

# 30 GB at 20 MB/s; the remote side ends by then.
BACKUP_TIMEOUT_S = 1800


@operation()
def back_up(
    request: Mapping[str, Any], found: BackupPlan, done: dict[str, str]
) -> Generator[FunctionCommand, None, None]:
    """
    Back a tree up, unless a verified backup holds the very same of it.

    + request: what node's `tree backup` takes
    + found: what its dry run told
    + done: gets the backup's id by host, for the verification
    """
    if not found.stored and found.backup is not None:
        done[host.name] = found.backup
        host.noop(f"{found.backup} is verified and holds the same files")
        return
    size = f"{found.members} files and folders, {found.apparent_bytes / MIB:.0f} MiB"
    host.log(f"back up {found.tree}: {found.versions.text}; {size}")

    def work(state: State, host: Host) -> str:
        answer = _call(state, host, "tree backup", request)
        done[host.name] = answer["backup"]
        return (
            f"backup {answer['backup']}: {answer['detail']}, {answer['bytes'] / MIB:.0f} MiB, "
            f"{answer['took_s']:.1f} s"
        )

    yield told(work)


@operation()
def verify_backup(
    ids: Collection[str], made: Mapping[str, str], pending: bool
) -> Generator[FunctionCommand, None, None]:
    """
    Read backups back against their manifests.

    + ids: the backups that are there
    + made: the one that this run makes, by host, once it is made
    + pending: whether this run makes one here
    """
    if not ids and not pending:
        host.noop("nothing to verify")
        return

    def work(state: State, host: Host) -> str:
        lines = []
        for backup in (*ids, *([made[host.name]] if pending else ())):
            answer = _call(state, host, "tree verify", {"backup": backup})
            size = f"{answer['members']} members, {answer['took_s']:.1f} s"
            lines.append(f"{answer['backup']} is whole: {size}")
        return "; ".join(lines)

    yield told(work)


@operation()
def copy_backup(
    request: Mapping[str, Any], row: BackupRow
) -> Generator[FunctionCommand, None, None]:
    """
    Copy a backup to another disk of the host and read it back there; read back alone where it is.

    + request: what node's `tree copy` takes
    + row: the backup
    """
    place = request["to"]
    host.log(f"copy {row.id} to {place}, or read the copy back that is there")

    def work(state: State, host: Host) -> str:
        answer = _call(state, host, "tree copy", request)
        what = "copied, and read back" if answer["made"] else "was there; it was read back"
        size = f"{answer['bytes'] / MIB:.0f} MiB, {answer['took_s']:.1f} s"
        return f"{answer['backup']} {what} in {answer['place']}: {size}"

    yield told(work)


@operation()
def take_backup(
    request: Mapping[str, Any], run: Run | None = None, members: Collection[str] = ()
) -> Generator[FunctionCommand, None, None]:
    """
    Bring a backup that is gone from the host back from its copy, and verify it.

    + request: what node's `tree take` takes; empty where nothing is to come to the host
    + run: the run that ends on all nodes where it fails on one; None: each host by itself
    + members: the nodes of that run to which one comes
    """
    if not request:
        host.noop("it is on the host")
        return
    host.log(f"bring {request['backup']} back from its copy")

    def work(state: State, host: Host) -> str:
        answer = _call(state, host, "tree take", request)
        size = f"{answer['members']} members, {answer['took_s']:.1f} s"
        return f"{answer['backup']} is back from {answer['place']}, and whole: {size}"

    yield told_together(run, "take", members, work, BACKUP_TIMEOUT_S) if run else told(work)


@operation()
def prune_backups(
    request: Mapping[str, Any], found: PrunePlan
) -> Generator[FunctionCommand, None, None]:
    """
    Remove backups beyond the newest; the last verified one and what a change needs stay.

    + request: what node's `tree prune` takes
    + found: what its dry run told
    """
    if not found.removed and not found.displaced_removed:
        host.noop("nothing to remove")
        return
    for row in found.removed:
        host.log(f"remove backup {row.id} ({row.bytes / MIB:.0f} MiB): {row.why}")
    for kept in found.displaced_removed:
        size = f"{kept.bytes / MIB:.0f} MiB"
        host.log(f"remove {kept.path} ({size}), displaced by {kept.change}")

    def work(state: State, host: Host) -> str:
        answer = call(state, host, "tree prune", dict(request), PRUNE_TIMEOUT_S)
        kept = ", ".join(f"{row['id']} ({row['why']})" for row in answer["kept"])
        return f"{answer['freed_bytes'] / MIB:.0f} MiB freed; kept: {kept or 'nothing'}"

    yield told(work)


def _call(state: State, host: Host, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """node's answer; while it works the operator sees how far it is, and how long it will take."""

    def progress() -> Sequence[str]:
        seen = fact_of(state, host, TreeBackups)
        return seen.working if seen is not None else ()

    return call_with_progress(state, host, verb, request, BACKUP_TIMEOUT_S, progress)
