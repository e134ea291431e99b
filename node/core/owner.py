"""The same as another user; files of secrets in an environment."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import Done, environment, not_roots
from node.rules.secret import MAX_SECRET, unfit
from node.rules.text import environment_text, environment_value

# Which Python an image's vLLM has, for programs that run in its place.

# `python3` of an image may be another one than that of its `vllm` (an image with a venv). What
# stands behind it is Python's: the program, which follows -c, and its arguments.
SHELL = """\
p=$(command -v vllm) && read -r first < "$p" && case $first in
"#!"*python*) exec ${first#??} -c "$@";; esac
exec python3 -c "$@"
"""


# Run a program as a folder's owner: its configuration counts, and files stay its own.

_PR_SET_PDEATHSIG = 1


class Owner:
    """Who owns a folder, and how to run a program as that user (root's stay root's).

    `instead`: a user by name, in the owner's place.
    """

    def __init__(self, folder: str, instead: str | None = None) -> None:
        info = os.stat(folder)
        self.folder, self.uid, self.gid = folder, info.st_uid, info.st_gid
        if instead is not None:
            self.uid, self.gid = _user(instead)
        self.env: dict[str, str] = environment()
        self.user: str | None = None
        if os.geteuid() != 0 or self.uid == 0:
            return
        try:
            user = pwd.getpwuid(self.uid)
        except KeyError:
            raise NodeError(f"{folder} belongs to no user of this host", "no_owner") from None
        self.user, self.gid = user.pw_name, user.pw_gid
        self.env.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)

    def _become(self) -> None:
        """What the child does before it becomes the program."""
        if self.user is not None:
            os.initgroups(self.user, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)
        # after setuid, which clears it: killed with us, it must not go on changing files
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    def start(
        self, argv: Sequence[str], extra: dict[str, str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Gives the program as it runs, in a group of its own. Raises NodeError (no_program,
        not_roots).
        """
        env = {**self.env, **extra}
        if os.geteuid() == 0 and self.user is None:
            self._require_roots_own(argv, env["PATH"])
        try:
            return subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd="/",
                start_new_session=True,
                preexec_fn=self._become,
            )
        except OSError as error:
            raise NodeError(f"{argv[0]}: {error.strerror}", "no_program") from None

    def _require_roots_own(self, argv: Sequence[str], path: str) -> None:
        """Raise NodeError where another user could change what root is about to run: the program
        and what it is told to run, the folder, and the packages of one that is a venv.
        """
        program = shutil.which(argv[0], path=path) or argv[0]
        packages = glob.glob(os.path.join(glob.escape(self.folder), "lib/python*/site-packages"))
        for one in (self.folder, program, *argv[1:2], *packages):
            try:
                wrong = not_roots(one) if one.startswith("/") else None
            except OSError as error:
                raise NodeError(f"{one}: {error.strerror}", "no_program") from None
            if wrong is not None:
                raise not_run(argv[0], wrong)

    def run(self, argv: Sequence[str], timeout_s: float, extra: dict[str, str]) -> Done:
        """Gives the program's exit status and output; its whole group is ended after the time.

        Raises NodeError (timeout, no_program).
        """
        child = self.start(argv, extra)
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            # a grandchild in a session of its own may hold the pipes: it is not waited for
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=1)
            raise NodeError(f"{argv[0]} did not end in {timeout_s:g} s", "timeout") from None
        return Done(
            child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )


def not_run(what: str, wrong: str, remedy: str = "") -> NodeError:
    """Gives the error about what root is not to run or read, for `wrong` is another user's."""
    return NodeError(
        f"{what} is not run as root: another user may change {wrong}",
        "not_roots",
        remedy
        or f"ls -ld {shlex.quote(wrong)}; give it to root, or the whole tree to its user: "
        "sudo chown -R USER: TREE",
    )


def _user(name: str) -> tuple[int, int]:
    """Gives a user's uid and gid. Raises NodeError (`no_user`)."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NodeError(f"{name} is no user of this host", "no_user") from None
    return found.pw_uid, found.pw_gid


# The engine's secrets as an environment file: rendered on this host, compared here, read here.
#
# A value never leaves the host, and neither does a digest of one: the file's first line is random,
# so
# its sha256 (in the journal, in a snapshot) says nothing of what stands in it. No error quotes
# one.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEAD = "# Managed by rigbook, for root alone. This keeps its checksum from telling a value: "
_KEYS = ("name", "value", "node_file")


class Row(NamedTuple):
    """A secret: its variable and its value."""

    name: str
    value: str


def parse_secrets(value: Any, where: str) -> list[Row]:
    """Gives the secrets of a request; those of a file of this host are read. Raises NodeError."""
    rows = [_row(row, f"{where}[{n}]") for n, row in enumerate(validate.array(value, where, 100))]
    if len({row.name for row in rows}) != len(rows):
        raise validate.bad(f"{where}: a name stands twice")
    return rows


def _row(value: Any, where: str) -> Row:
    row = validate.keys(value, where, _KEYS, ("name",))
    name = row["name"]
    if not isinstance(name, str) or not _NAME.match(name):
        raise validate.bad(f"{where}.name is not a variable's name")
    if ("value" in row) == ("node_file" in row):
        raise validate.bad(f"{where}: give 'value' or 'node_file', one of them")
    if "node_file" in row:
        return Row(name, of_file(name, validate.path(row["node_file"], f"{where}.node_file")))
    if not isinstance(row["value"], str):
        raise validate.bad(f"{where}.value is not text")
    return Row(name, _fit(name, row["value"], "the value that was sent"))


def _fit(name: str, value: str, what: str) -> str:
    wrong = unfit(name, value)
    if wrong:
        raise NodeError(f"{name}: {what} {wrong}", "secret_unusable", "write it anew, as one line")
    return value


def of_file(name: str, path: str) -> str:
    """Gives the secret `name`, the one line of a file of this host. Raises NodeError
    (`secret_unusable`).
    """

    def unusable(why: str, remedy: str) -> NodeError:
        return NodeError(f"{name}: {path} {why}", "secret_unusable", remedy)

    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            info = os.fstat(file.fileno())
            raw = file.read(MAX_SECRET + 3) if stat.S_ISREG(info.st_mode) else b""
    except OSError as error:
        raise unusable(f"cannot be read: {error.strerror}", f"put the secret into {path}") from None
    if not stat.S_ISREG(info.st_mode):
        raise unusable("is no plain file", "name the file itself")
    if info.st_mode & stat.S_IRWXO:
        raise unusable("is open to every user", f"chmod o= {shlex.quote(path)}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise unusable("is not UTF-8 text", "write it anew, as one line") from None
    return _fit(name, text.removesuffix("\n").removesuffix("\r"), path)


def _lines(rows: list[Row], quoted: bool) -> list[str]:
    written = environment_value if quoted else str
    return [f"{name}={written(value)}" for name, value in rows]


def _former(path: str) -> str:
    """Gives the text of the file as it is; nothing where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
        return ""


def _pairs(text: str) -> dict[str, str]:
    """Gives the lines of an environment file by name, values as they are written."""
    rows = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, equals, value in rows if equals}


def render_secrets(path: str, rows: list[Row], quoted: bool) -> bytes:
    """Gives the file's bytes; those that lie there where they hold the same. `quoted`: for
    systemd, else raw, for docker."""
    former, lines = _former(path), _lines(rows, quoted)
    if former.startswith(_HEAD) and former.splitlines()[1:] == lines:
        return former.encode("utf-8")
    head = _HEAD + secrets.token_hex(16)
    return ("\n".join([head, *lines]) + "\n").encode("utf-8")


def look_at_secrets(request: Any) -> Json:
    """`secrets look`: how what is wanted differs from what lies there, by name; reads only."""
    wanted = ("path", "secrets", "quoted")
    body = validate.keys(request, "request", wanted, wanted)
    former = _pairs(_former(validate.path(body["path"], "path")))
    lines = _lines(
        parse_secrets(body["secrets"], "secrets"), validate.boolean(body["quoted"], "quoted")
    )
    now = _pairs("\n".join(lines))
    states = {
        name: "unchanged" if former.get(name) == value else "changed" if name in former else "new"
        for name, value in now.items()
    }
    return {"states": {**states, **{name: "removed" for name in former if name not in now}}}


def value_of(path: str, name: str, quoted: bool) -> str | None:
    """Gives the secret of that name in the file; None where there is none that we may read."""
    try:
        value = _pairs(_former(path)).get(name)
    except PermissionError:
        return None
    return environment_text(value) if value is not None and quoted else value


def values_of(path: str, quoted: bool) -> list[str]:
    """Gives the values of all secrets in the file; none where there is none that we may read."""
    try:
        values = _pairs(_former(path)).values()
    except PermissionError:
        return []
    return [environment_text(value) if quoted else value for value in values]
