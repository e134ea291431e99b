"""Applies a unified diff to one file's content with the real git, in a folder of its own.

The diff's own file names are not used: whatever they say, git sees one file called `file`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

TIMEOUT_S = 60


def apply(diff: str, content: bytes, reverse: bool) -> bytes | None:
    """The content with the diff applied (or, `reverse`, taken away); None where git refuses.

    Context must match to the letter; a hunk may have moved. RuntimeError when git is not there.
    """
    with tempfile.TemporaryDirectory(prefix="rigbook-diff-") as name:
        folder = Path(name)
        (folder / "file").write_bytes(content)
        (folder / "diff").write_bytes(_renamed(diff).encode())
        if _git(folder, reverse, "--check").returncode != 0:
            return None
        if _git(folder, reverse).returncode != 0:
            return None
        return (folder / "file").read_bytes()


def _renamed(diff: str) -> str:
    """The diff's hunks under headers that name our one file."""
    lines = diff.splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if line.startswith("@@"))
    body = "".join(lines[first:])
    return f"--- a/file\n+++ b/file\n{body if body.endswith(chr(10)) else body + chr(10)}"


def _git(folder: Path, reverse: bool, *options: str) -> subprocess.CompletedProcess[bytes]:
    # No repository around it, no person's settings: the same answer on every machine.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1",
           "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}  # fmt: skip
    env.pop("GIT_DIR", None)
    way = ["--reverse"] if reverse else []
    argv = ["git", "apply", "--whitespace=nowarn", *way, *options, "diff"]
    try:
        return subprocess.run(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise RuntimeError("git is not installed on this machine; patches need it") from None
