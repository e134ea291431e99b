"""`patch tool`: run a recipe's patch tool as a step of a change, or take back what it did."""

from __future__ import annotations

import re

from node.change import journal, transaction
from node.core import validate
from node.core.errors import Json, NodeError, io_reason
from node.core.run import Done
from node.core.run_as_owner import Owner
from node.core.step_state import DONE, FAILED
from node.patch import inspect
from node.patch.tool_step import ToolKind, file_rows, own_copies, too_large
from node.venv.pip_plan import masked

SUMMARY = re.compile(r"(\d+)\s+applied,\s*(\d+)\s+skipped,\s*(\d+)\s+failed")


def counts(done: Done) -> dict[str, int]:
    """Gives what a tool says at its end: applied, skipped, failed. Raises NodeError without it."""
    said = list(SUMMARY.finditer(done.out)) or list(SUMMARY.finditer(done.err))
    last = masked(done.last_line())[:300]
    if done.rc != 0:
        raise NodeError(f"the tool ended with {done.rc}: {last}", "tool_failed")
    if not said:
        raise NodeError(
            f"the tool did not say 'N applied, M skipped, K failed': {last}", "tool_failed"
        )
    applied, skipped, failed = (int(number) for number in said[-1].groups())
    if failed:
        raise NodeError(
            f"the tool says: {applied} applied, {skipped} skipped, {failed} failed", "tool_failed"
        )
    return {"applied": applied, "skipped": skipped, "failed": failed}


def run_tool(request: Json) -> Json:
    """Run a patch tool as a step of a change; gives its counts and the files that it changed.

    Nothing is run when the tree is as its last good run left it. When it fails, what it did is
    taken back and nothing has changed.
    """
    body = validate.keys(request, "request", ("change", "tool"), ("change", "tool"))
    header = journal.parse_change(body["change"])
    tool = inspect.parse_tool(body["tool"], "tool")
    with transaction.opened(header, f"patch tool {tool['id']}") as steps:
        if inspect.tool_already_applied(tool):
            return _answer(steps, tool, None, [])
        entry, kept = ToolKind("tool").begin(tool, steps)
        failure: NodeError | None = None
        said: dict[str, int] = {}
        try:
            own_copies(entry["before"], kept, entry)
            said = counts(Owner(tool["tree"]).run(tool["argv"], tool["timeout_s"], tool["env"]))
        except (NodeError, OSError) as error:
            failure = error if isinstance(error, NodeError) else NodeError(io_reason(error), "io")
            if failure.code != "not_roots":
                failure.remedy = "see the recipe's patch_tools"
        rows = file_rows(entry["before"], inspect.scan(tool["tree"]), kept, entry)
        failure = failure or too_large(entry)
        steps.rows.extend(rows)
        steps.finish(entry, FAILED if failure else DONE, before={}, said=said)
        if failure is not None:
            raise steps.take_back(failure)
        inspect.save_tool_marker(tool)
        if not rows:
            steps.forget([entry])
        return _answer(steps, tool, said, rows)


def _answer(
    steps: transaction.Transaction, tool: Json, said: dict[str, int] | None, rows: list[Json]
) -> Json:
    """Gives what became of the tool; `said` None: it had been done already."""
    files = [row["path"] for row in rows]
    return {**steps.answer(), "changed": bool(rows), "tool": tool["id"], "said": said,
            "files": files}  # fmt: skip
