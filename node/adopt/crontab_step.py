"""The step that comments lines of a crontab out. In the journal it is a step on the file."""

from __future__ import annotations

from node.change.file_step import FileKind
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.step_kind import Kind, Seen, Steps
from node.files import atomic
from node.snapshot import cron

MARK = "# taken over by rigbook: "
MOST = 100


class CrontabKind(Kind):
    """Lines that would start an engine, by number and by what was seen there."""

    keys = required = ("path", "lines")
    plans_ahead = True

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        rows = []
        for n, row in enumerate(validate.array(step["lines"], f"{where}.lines", MOST)):
            at, names = f"{where}.lines[{n}]", ("line", "text")
            body = validate.keys(row, at, names, names)
            number = int(validate.number(body["line"], f"{at}.line", 1, 1 << 20))
            rows.append({"line": number, "text": validate.text(body["text"], f"{at}.text", 4096)})
        return {"op": self.op, "path": validate.path(step["path"], f"{where}.path"), "lines": rows}

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether a line is still to be commented out."""
        changed, _ = FileKind("file").plan(self._as_file(step), seen)
        return changed, "comments out " + ", ".join(f"line {row['line']}" for row in step["lines"])

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Write the file with these lines commented out; its owner and mode stay."""
        return FileKind("file").do(self._as_file(step), steps)

    def _as_file(self, step: Json) -> Json:
        """Gives the step on the file, from what lies there now."""
        path = step["path"]
        kept: list[bytes] = []
        with atomic.Folder(path) as folder:
            now = atomic.read_entry(folder, kept.append)
        if now["kind"] != "file":
            raise NodeError(f"{path} is a {now['kind']}, not a crontab", "not_a_file")
        lines = kept[0].decode("utf-8", "surrogateescape").split("\n")
        for row in step["lines"]:
            n = row["line"] - 1
            text = lines[n] if n < len(lines) else ""
            if text.startswith(MARK) and cron.masked(text[len(MARK) :]) == row["text"]:
                continue
            if cron.masked(text) != row["text"]:
                raise NodeError(
                    f"{path}: line {row['line']} is not what was seen: it was edited meanwhile",
                    "changed_meanwhile", "look at the file, then run again",
                )  # fmt: skip
            lines[n] = MARK + text
        return {
            "op": "file",
            "path": path,
            "raw": "\n".join(lines).encode("utf-8", "surrogateescape"),
            "owner": atomic.Owner(int(now["mode"], 8), now["uid"], now["gid"]),
            "expect_sha256": now["sha256"],
            "validate": None,
            "keep": False,
            "sensitive": True,
        }
