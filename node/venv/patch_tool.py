"""A patch tool run, and its step."""

from __future__ import annotations

import bz2
import io
import os
import re
import stat
import tarfile

from node.change import journal, transaction
from node.change.journal import DONE, FAILED
from node.change.kinds import PRE, Kind, Steps
from node.core import files, validate
from node.core.errors import Json, NodeError, io_reason
from node.core.owner import Owner
from node.core.run import Done
from node.venv import artifact
from node.venv.versions import masked

# A patch tool's run as a step of a change: its tree is kept, and what it changed can be undone.
#
# The whole tree goes into one pre-image before the tool runs; after it, each file that it changed
# becomes an ordinary file step. A kill in between leaves the pre-image, of which `recover` makes
# them.

_REMEDY = "bring the tree back from its backup, then: rignode undo"


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


def file_rows(
    before: dict[str, Json], after: dict[str, Json], kept: dict[str, bytes], entry: Json
) -> list[Json]:
    """Gives a file step, done, for each file that differs; its pre-image is kept as a blob.

    A file too large to be kept is noted in the run's entry instead: no undo brings it back.
    """
    rows: list[Json] = []
    for path in sorted(set(before) | set(after)):
        pre, post = before.get(path, dict(files.ABSENT)), after.get(path, dict(files.ABSENT))
        if pre == post:
            continue
        if "large" in pre or "large" in post:
            entry.setdefault("too_large", {})[path] = pre
            continue
        row: Json = {"op": "file", "path": path, "state": DONE, "pre": pre, "post": post,
               "temp": files.temp_name(path.rpartition("/")[2])}  # fmt: skip
        if pre["kind"] == "file":
            files.save_blob(kept[path])
            if "xattrs" in entry:
                row.update(xattrs=entry["xattrs"].get(path, {}))
        rows.append(row)
    return rows


def own_copies(before: dict[str, Json], kept: dict[str, bytes], entry: Json) -> None:
    """Make each kept file of several names (a package cache's, as of uv) one of its own.

    A tool that writes in place would change the other name's file, too, which no undo brings back.
    Raises NodeError, OSError.
    """
    for path, raw in kept.items():
        with files.Folder(path, links=False) as folder:
            info = folder.lstat()
            if info is None or info.st_nlink < 2 or files.read_entry(folder) != before[path]:
                continue
            owner = files.Owner(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
            files.replace(folder, raw, owner, files.temp_name(folder.name),
                           xattrs=entry["xattrs"].get(path, {}))  # fmt: skip
            # bytecode is made for this time
            os.utime(folder.name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=folder.fd,
                     follow_symlinks=False)  # fmt: skip


def too_large(entry: Json) -> NodeError | None:
    """Gives the error for a run that changed what is too large to be kept, else None."""
    if "too_large" not in entry:
        return None
    paths = ", ".join(sorted(entry["too_large"]))
    shared = [path for path in entry["too_large"] if os.path.exists(path)
              and os.stat(path).st_nlink > 1]  # fmt: skip
    more = (
        f"; {', '.join(shared)} is a hard link: a package cache may have it, too" if shared else ""
    )
    return NodeError(f"the tool changed {paths}, which is too large to be kept{more}",
                     "tool_too_large", _REMEDY)  # fmt: skip


class ToolKind(Kind):
    """The run itself; the files that it changed are steps of their own, so undo passes it over."""

    irreversible = True

    def begin(self, tool: Json, steps: Steps) -> tuple[Json, dict[str, bytes]]:
        """Announce a run with its tree kept; gives the entry and the files' bytes."""
        before = artifact.scan_tree(tool["tree"])
        kept = artifact.read_tree([path for path, row in before.items() if "sha256" in row])
        about = {"tool": tool["id"], "tree": tool["tree"], "argv": tool["argv"],
                 "xattrs": artifact.read_attributes(list(kept))}  # fmt: skip
        entry = self.record(steps, **about, pack=files.save_blob(_pack(kept)), before=before)
        return entry, kept

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Append the file steps of a run that a kill cut short; it counts as failed."""
        kept = _unpack(files.load_blob(entry["pack"]))
        rows += file_rows(entry["before"], artifact.scan_tree(entry["tree"]), kept, entry)
        entry["before"] = {}
        return FAILED

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the files that are not as before the run, and that it could not keep."""
        lines: list[str] = []
        for path, pre in entry.get("too_large", {}).items() if side == PRE else ():
            if artifact.scan_file(path) != pre:
                lines.append(f"{path} was changed by the tool {entry['tool']}: {_REMEDY}")
        return lines

    def passed_over(self, entry: Json) -> str:
        """Gives what an undo says of it."""
        return "the files that it changed are put back one by one"


# `patch tool`: run a recipe's patch tool as a step of a change, or take back what it did.

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
    tool = artifact.parse_tool(body["tool"], "tool")
    with transaction.opened(header, f"patch tool {tool['id']}") as steps:
        if artifact.tool_already_applied(tool):
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
        rows = file_rows(entry["before"], artifact.scan_tree(tool["tree"]), kept, entry)
        failure = failure or too_large(entry)
        steps.rows.extend(rows)
        steps.finish(entry, FAILED if failure else DONE, before={}, said=said)
        if failure is not None:
            raise steps.take_back(failure)
        artifact.save_tool_marker(tool)
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
