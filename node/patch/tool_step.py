"""A patch tool's run as a step of a change: its tree is kept, and what it changed can be undone.

The whole tree goes into one pre-image before the tool runs; after it, each file that it changed
becomes an ordinary file step. A kill in between leaves the pre-image, of which `settle` makes them.
"""

from __future__ import annotations

import bz2
import io
import re
import tarfile

from node.change import journal
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import Done
from node.core.run_as_owner import Owner
from node.files import atomic
from node.files.host_lock import Lock
from node.patch import inspect
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


def _pack(contents: dict[str, bytes]) -> bytes:
    """Gives files as one archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, raw in contents.items():
            info = tarfile.TarInfo(path.lstrip("/"))
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return bz2.compress(buffer.getvalue(), 1)


def _unpack(raw: bytes) -> dict[str, bytes]:
    """Gives the files of an archive that `_pack` made; nothing is written anywhere."""
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(bz2.decompress(raw))) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                contents["/" + member.name] = file.read()
    return contents


def _rows(before: dict[str, Json], after: dict[str, Json], kept: dict[str, bytes]) -> list[Json]:
    """Gives a file step, done, for each file that differs; its pre-image is kept as a blob."""
    rows: list[Json] = []
    for path in sorted(set(before) | set(after)):
        pre, post = before.get(path, dict(atomic.ABSENT)), after.get(path, dict(atomic.ABSENT))
        if pre == post:
            continue
        if "large" in pre or "large" in post:
            raise NodeError(
                f"the tool changed {path}, which is too large to be kept",
                "tool_too_large",
                "bring the tree back from its backup",
            )
        if pre["kind"] == "file":
            atomic.save_blob(kept[path])
        name = path.rpartition("/")[2]
        rows.append(
            {
                "op": "file",
                "path": path,
                "state": "done",
                "pre": pre,
                "post": post,
                "temp": atomic.temp_name(name),
            }
        )
    return rows


def settle(entry: Json) -> list[Json]:
    """Gives the file steps of a tool that a kill left under way; it is marked failed."""
    kept = _unpack(atomic.load_blob(entry["pack"]))
    rows = _rows(entry["before"], inspect.scan(entry["tree"]), kept)
    entry["state"] = "failed"
    entry["before"] = {}
    return rows


def run_tool(request: Json) -> Json:
    """Run a patch tool as a step of a change; gives its counts and the files that it changed.

    Nothing is run when the tree is as its last good run left it. When it fails, what it did is
    taken back and nothing has changed.
    """
    from node.change import apply as changes

    body = validate.keys(request, "request", ("change", "tool"), ("change", "tool"))
    header = journal.checked_change(body["change"])
    tool = inspect.checked_tool(body["tool"], "tool")
    with Lock(f"patch tool {tool['id']} by {header['operator']}"):
        journal.sweep()
        found = changes.opened(header)
        if inspect.is_done(tool):
            return _answer(found, tool, None, [])
        before = inspect.scan(tool["tree"])
        kept = inspect.read_tree([path for path, row in before.items() if "sha256" in row])
        entry: Json = {
            "op": "tool",
            "tool": tool["id"],
            "tree": tool["tree"],
            "argv": tool["argv"],
            "state": "intent",
            "pack": atomic.save_blob(_pack(kept)),
            "before": before,
        }
        found["steps"].append(entry)
        journal.save(found)
        failure: NodeError | None = None
        said: dict[str, int] = {}
        try:
            said = counts(Owner(tool["tree"]).run(tool["argv"], tool["timeout_s"], tool["env"]))
        except NodeError as error:
            failure = error
        rows = _rows(before, inspect.scan(tool["tree"]), kept)
        entry.update(state="done" if failure is None else "failed", before={}, said=said)
        found["steps"] += rows
        journal.save(found)
        if failure is not None:
            raise _taken_back(found, entry, rows, failure)
        inspect.save_done(tool)
        if not rows:
            _forget(found, [entry])
        return _answer(found, tool, said, rows)


def _forget(change: Json, rows: list[Json]) -> None:
    """Take steps that changed nothing out of a change; an empty change goes with them."""
    change["steps"] = [row for row in change["steps"] if all(row is not one for one in rows)]
    if change["steps"]:
        journal.save(change)
    else:
        journal.drop(change["id"])


def _taken_back(change: Json, entry: Json, rows: list[Json], failure: NodeError) -> NodeError:
    """Put the files back that a failed tool changed; gives the error to raise."""
    from node.change import undo

    try:
        for row in reversed(rows):
            undo.revert(row, overwrite=False)
        _forget(change, [entry, *rows])
    except (NodeError, OSError) as second:
        return NodeError(
            f"{failure}; taking back failed too: {second}; the change stays OPEN",
            failure.code,
            "rignode undo",
        )
    return NodeError(
        f"{failure}; nothing was changed", failure.code, "see the recipe's patch_tools"
    )


def _answer(change: Json, tool: Json, said: dict[str, int] | None, rows: list[Json]) -> Json:
    """Gives what became of the tool; `said` None: it had been done already."""
    has_steps = bool(change["steps"])
    return {
        "change": change["id"] if has_steps else None,
        "status": "OPEN" if has_steps else None,
        "changed": bool(rows),
        "tool": tool["id"],
        "said": said,
        "files": [row["path"] for row in rows],
    }
