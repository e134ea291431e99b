"""The venvs that the request names, read from their files: nothing of a venv is run.

A venv breaks in pieces: `pip uninstall` takes bin/vllm (status 127), an upgrade of the system's
Python takes the interpreter, a restore to another path leaves shebangs that lead nowhere.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import stat

from node.core import proc
from node.core.errors import Json

# what an upgrade changes and a recipe or a compatibility entry names
DISTRIBUTIONS = ("vllm", "torch", "transformers")
_INFO = re.compile(r"^([A-Za-z0-9_.]+?)-([^-]+)\.dist-info$")
LOGIND = ("/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf")
_LOGIND_DROP_INS = ("/usr/lib", "/usr/local/lib", "/run", "/etc")
# login.defs, SYS_UID_MAX: logind leaves system users alone
SYSTEM_UID_MAX = 999


def read(probes: list[Json]) -> list[Json]:
    """Gives what each probe (`path`, `user`) finds, in their order."""
    return [one(str(probe["path"]), str(probe["user"])) for probe in probes]


def one(path: str, user: str) -> Json:
    """Gives one venv's state."""
    target = os.path.realpath(path)
    there = os.path.isdir(target)
    python = os.path.join(target, "bin", "python")
    config = _config(os.path.join(target, "pyvenv.cfg"))
    first_line = shebang(os.path.join(target, "bin", "vllm"))
    kind, executable = _entry(os.path.join(target, "bin", "vllm"))
    uid = _uid(user)
    return {
        "path": path,
        "user": user,
        "target": target if there else None,
        "python": os.path.realpath(python) if os.access(python, os.X_OK) else None,
        "base": config.get("home"),
        "python_version": config.get("version"),
        "entry_kind": kind,
        "entry_executable": executable,
        "entry_shebang": first_line,
        "entry_shebang_exists": None if first_line is None else os.access(first_line, os.X_OK),
        "versions": versions(target),
        "user_exists": uid is not None,
        "shm_goes": None if uid is None else shm_goes(user, uid),
    }


def _config(path: str) -> dict[str, str]:
    """Gives the values of a pyvenv.cfg."""
    pairs = (line.partition("=") for line in proc.read_text(path).splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _entry(path: str) -> tuple[str, bool]:
    """Gives the kind of a program's path, links followed, and whether it can be executed."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return "absent", False
    return ("file" if stat.S_ISREG(mode) else "other"), os.access(path, os.X_OK)


def shebang(path: str) -> str | None:
    """Gives the interpreter that a script names, or None for none.

    A path too long for the kernel stands behind `exec` in the second line (pip's way).
    """
    try:
        with open(path, "rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    long = re.match(r"""^'''exec' ["']?(/[^"']+?)["']? "\$0\"""", lines[1]) if lines[1:] else None
    if long and words and os.path.basename(words[0]) == "sh":
        return long.group(1)
    return words[0] if words else None


def versions(target: str) -> dict[str, list[str]]:
    """Gives the installed versions of what rigbook compares: two of one are a broken install."""
    found: dict[str, list[str]] = {}
    pattern = os.path.join(glob.escape(target), "lib", "python3*", "site-packages", "*.dist-info")
    for folder in glob.glob(pattern):
        match = _INFO.match(os.path.basename(folder))
        if match and match.group(1).lower() in DISTRIBUTIONS:
            found.setdefault(match.group(1).lower(), []).append(match.group(2))
    return {name: sorted(rows) for name, rows in sorted(found.items())}


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def shm_goes(user: str, uid: int) -> bool:
    """Gives True when logind removes this user's shared memory at the last logout (vllm#54259).

    It leaves system users alone, and those who linger; RemoveIPC is `yes` where nobody set it.
    """
    if uid <= SYSTEM_UID_MAX or os.path.exists(f"/var/lib/systemd/linger/{user}"):
        return False
    files: dict[str, str] = {}
    for base in _LOGIND_DROP_INS:
        for path in glob.glob(f"{base}/systemd/logind.conf.d/*.conf"):
            # of one name the last folder's counts (systemd's order of precedence)
            files[os.path.basename(path)] = path
    value = "yes"
    for path in (*LOGIND, *(files[name] for name in sorted(files))):
        for line in proc.read_text(path).splitlines():
            name, equals, said = line.partition("=")
            if equals and name.strip() == "RemoveIPC" and said.strip():
                value = said.strip().lower()
    return value not in ("no", "false", "off", "0", "n", "f")
