"""Operations that bring a venv's backup back, and undo what is open before."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.node_call import call
from operations.change.run import Run
from operations.rollback.revert import RESTORE_TIMEOUT_S, stop_unit
from operations.venv.venv import check_venv


@operation()
def undo_open(run: Run, node: str, change: str | None) -> Generator[FunctionCommand, None, None]:
    """
    Stop the engine and undo a change that is open, without a start.

    + run: the change of the restore
    + node: the rig's node
    + change: the id of what is open; None: nothing is
    """
    if change is None:
        host.noop("no change is open")
        return

    def work() -> None:
        stop_unit(run.state, node)
        request = {"change": change, "start_units": False, "reason": "before a restore"}
        answer = call(run.state, run.host(node), "undo", request, RESTORE_TIMEOUT_S)
        run.host(node).log_styled(f"change {change} is {answer['status']}", fg="green")

    run.show_once(host, "undo", partial(host.log, f"undo {change}, without a start"))
    yield run.step("undo", [host.name], work)


@operation()
def unpack(
    run: Run, node: str, backup: str, force: bool, line: str | None
) -> Generator[FunctionCommand, None, None]:
    """
    Unpack a backup beside the present tree and prove it, while the engine goes on as it is.

    + run: the change
    + node: the rig's node
    + backup: the backup's id
    + force: it was compared a moment ago, and is different
    + line: what is to be done; None: nothing is to be unpacked
    """
    if line is None:
        host.noop("nothing is to be unpacked beside the tree")
        return

    def work() -> None:
        run.touch(node)
        request = {"change": run.change(), "backup": backup, "allow": ["older"], "force": force}
        answer = call(run.state, run.host(node), "tree unpack", request, RESTORE_TIMEOUT_S)
        said = "the tree is as the backup"
        if answer["changed"]:
            said = f"unpacked and proven, {answer['took_s']:.0f} s"
        run.host(node).log(f"{backup}: {said}")

    run.show_once(host, "unpack", partial(host.log, line))
    yield run.step("unpack", [host.name], work)


@operation()
def restore(
    run: Run, node: str, backup: str, venv: str, package: str, force: bool, words: Sequence[str]
) -> Generator[FunctionCommand, None, None]:
    """
    Bring a backup's files back in their place, unit and launch files too, and run its interpreter.

    + run: the change
    + node: the rig's node
    + backup: the backup's id
    + venv: the folder that the engine is started from
    + package: the engine's distribution in it
    + force: unpack without another comparison with what lies there
    + words: what the restore will do, a line each; none: nothing is to do
    """
    if not words:
        host.noop("the tree is as the backup, and the engine runs")
        return

    def work() -> None:
        target = run.host(node)
        run.touch(node)
        request: dict[str, Any] = {"change": run.change(), "backup": backup, "allow": ["older"]}
        if force:
            request["force"] = True
        answer = call(run.state, target, "tree restore", request, RESTORE_TIMEOUT_S)
        for line in answer.get("cleared", ()):
            target.log(line)
        what = "nothing was different" if not answer["changed"] else f"{answer['took_s']:.0f} s"
        # The program, which loads the whole engine, is executed while the engine starts.
        check_venv(run.state, target, venv, package, imports=False, quick=True)
        files = "".join(f"; {each}" for each in answer["files"])
        target.log_styled(f"{backup} is back in {answer['real']} ({what}){files}", fg="green")

    for line in words:
        run.show_once(host, line, partial(host.log, line))
    yield run.step("restore", [host.name], work)
