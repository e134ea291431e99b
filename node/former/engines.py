"""The `vllm serve` processes that rigbook did not start, with all that their start was made of."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence

from node.core import masking, proc
from node.core.errors import Json
from node.rules.patterns import LOGIN_UNIT
from node.rules.secret import MASK, SECRET_FLAG, has_credentials
from node.snapshot.processes import is_engine

# our unit and our container have this in front; node/reap/request.py has their names
OURS = "rigbook-"
# a unit of somebody's own manager: user@UID.service holds it
USERS = re.compile(r"/user@(\d+)\.service/(?:.*/)?([^/]+\.service)(?:/|$)")
_ENTRY = re.compile(r"(?:^|/)vllm$")
_SERVER = re.compile(r"vllm[./]entrypoints[./]openai[./]api_server(?:\.py)?$")
DEFAULT_PORT = 8000


def serves(argv: Sequence[str]) -> bool:
    """Gives True for `vllm serve`, `python -m vllm… serve` and the api_server's own module.

    A worker's title, `vllm bench` and `vllm chat` are none.
    """
    if not is_engine(argv) or argv[0].startswith("VLLM::"):
        return False
    for n, arg in enumerate(argv[:8]):
        if _SERVER.search(arg):
            return True
        if _ENTRY.search(arg) or arg in ("vllm", "vllm.entrypoints.cli.main"):
            return argv[n + 1 : n + 2] == ["serve"] or argv[n + 1 : n + 2] == ("serve",)
    return False


def option(argv: Sequence[str], *names: str) -> str | None:
    """Gives the last value of an option, as `--name value` or `--name=value`; None without one.

    vLLM takes `_` for `-` in an option's name.
    """
    found = None
    for n, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name.startswith("-") and name.replace("_", "-") in names:
            found = value if equals else next(iter(argv[n + 1 : n + 2]), None)
    return found


def _number(argv: Sequence[str], default: int, *names: str) -> int:
    """Gives an option's number, or the default where there is none that can be read."""
    value = option(argv, *names)
    return int(value) if value is not None and value.isdigit() else default


def ancestors(pid: int) -> list[int]:
    """Gives the pids above a process, its parent first."""
    found: list[int] = []
    row = proc.stat(pid)
    while row is not None and row.ppid > 1 and row.ppid not in found:
        found.append(row.ppid)
        row = proc.stat(row.ppid)
    return found


def _venv(argv: Sequence[str], environ: dict[str, str]) -> str | None:
    """Gives the venv's folder that the interpreter or the script lies in, or None."""
    folders = [os.path.dirname(os.path.dirname(word)) for word in argv[:2] if "/bin/" in word]
    for folder in [*folders, environ.get("VIRTUAL_ENV", "")]:
        if folder.startswith("/") and os.path.exists(os.path.join(folder, "pyvenv.cfg")):
            return folder
    return None


def user_name(uid: int) -> str | None:
    """Gives the name of a user of this host, or None."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _cwd(pid: int) -> str | None:
    """Gives a process's folder as it sees it, or None."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def _masked(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Gives argv without the values of secrets, and the options that had some."""
    shown = [MASK if has_credentials(arg) else arg for arg in masking.masked_argv(argv)]
    flags: dict[str, None] = {}
    for n, (arg, told) in enumerate(zip(argv, shown, strict=True)):
        if arg != told:
            back = [a for a in argv[: n + 1] if a.startswith("--")]
            flags[back[-1].partition("=")[0] if back else arg] = None
    return shown, [flag for flag in flags if SECRET_FLAG.match(flag) or flag.startswith("--")]


def _engine(pid: int, argv: Sequence[str]) -> Json | None:
    """Gives one engine, or None when it ended meanwhile, or is rigbook's own unit's."""
    before = proc.stat(pid)
    cgroup, environ, uid = proc.cgroup(pid), proc.environ(pid), proc.uid(pid)
    exe, cwd = proc.exe(pid), _cwd(pid)
    after = proc.stat(pid)
    if before is None or after is None or uid is None or before.start_ticks != after.start_ticks:
        return None
    unit = proc.unit_of(cgroup)
    if unit is not None and unit.startswith(OURS):
        return None
    if unit is not None and (LOGIN_UNIT.match(unit) or USERS.search(cgroup)):
        unit = None
    secret = sorted(name for name, value in environ.items() if masking.is_secret(name, value))
    shown, flags = _masked(argv)
    inside = proc.container_of(cgroup)
    return {
        "pid": pid,
        "start_ticks": after.start_ticks,
        "argv": shown,
        "env": {name: MASK if name in secret else environ[name] for name in sorted(environ)},
        "secret_env": secret,
        "secret_flags": flags,
        "cwd": cwd,
        "uid": uid,
        "user": user_name(uid),
        "exe": exe,
        "unit": unit,
        # the container's id; node/former/look.py names it
        "container": inside,
        "inside_of": "host",
        "venv": None if inside else _venv(argv, environ),
        "port": _number(argv, DEFAULT_PORT, "--port"),
        "node_rank": _number(argv, 0, "--node-rank", "-r"),
        "is_head": "--headless" not in argv and _number(argv, 0, "--node-rank", "-r") == 0,
        "cgroup": cgroup,
    }


def read() -> list[Json]:
    """Gives the engines, ascending by pid; the processes below one are its own workers."""
    found = {pid: argv for pid in proc.pids() if serves(argv := proc.argv(pid))}
    mains = [pid for pid in found if not set(ancestors(pid)) & set(found)]
    return [row for row in (_engine(pid, found[pid]) for pid in mains) if row is not None]
