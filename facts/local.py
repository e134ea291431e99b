"""The operator's own machine: git, secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

from node.rules.secret import API_KEY, MAX_SECRET, unfit
from schema.core import Secret
from schema.plan import Plan
from schema.recipe import SecretSource

# What the operator's own machine answers: git's patches.

# Applies a unified diff to one file's content with the real git, in a folder of its own.
#
# The diff's own file names are not used: whatever they say, git sees one file called `file`.

TIMEOUT_S = 60


def git_apply(diff: str, content: bytes, reverse: bool) -> bytes | None:
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


# The values of a recipe's secrets that this machine has: of its shell, and of its files.


class SecretMissing(Exception):
    """The value cannot be had here: `str()` says why, `remedy` what to do; neither quotes it."""

    def __init__(self, line: str, remedy: str) -> None:
        super().__init__(line)
        self.remedy = remedy


def value_of(name: str, source: SecretSource) -> Secret | None:
    """The value of the secret `name`; None where the nodes have it. Raises SecretMissing."""
    if source.env is not None:
        value, said = os.environ.get(source.env, ""), f"the variable {source.env} of this shell"
        remedy = f"read -rs {source.env}; export {source.env}"
        if source.env not in os.environ:
            raise SecretMissing(f"{name}: {said} is not set", remedy)
    elif source.file is not None:
        value, said = _of_file(name, source.file), source.file
        remedy = f"write the secret into {source.file}, as one line"
    else:
        return None
    wrong = unfit(name, value)
    if wrong:
        raise SecretMissing(f"{name}: {said} {wrong}", remedy)
    return Secret(value)


def _of_file(name: str, path: str) -> str:
    """The one line of a file of this machine. Raises SecretMissing."""
    try:
        with Path(path).expanduser().open("rb") as file:
            mode, raw = os.fstat(file.fileno()).st_mode, file.read(MAX_SECRET + 3)
        text = raw.decode("utf-8")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "there is no home"
        raise SecretMissing(
            f"{name}: {path} cannot be read: {why}", f"write the secret into {path}, as one line"
        ) from None
    except UnicodeDecodeError:
        raise SecretMissing(f"{name}: {path} is not UTF-8 text", "write it anew") from None
    if stat.S_IMODE(mode) & stat.S_IRWXO:
        raise SecretMissing(f"{name}: {path} is open to every user", f"chmod o= {path}")
    return text.removesuffix("\n").removesuffix("\r")


def api_key(plan: Plan) -> Secret | None:
    """The key that the recipe gives its engine; None where it gives none, or not from here."""
    source = plan.recipe.secrets.get(API_KEY)
    try:
        return value_of(API_KEY, source) if source is not None else None
    except SecretMissing:
        return None
