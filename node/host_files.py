"""Files, venvs and identity of a host as the snapshot has them."""

from __future__ import annotations

import glob
import hashlib
import os
import pwd
import re
import stat
import sys
import time
from collections.abc import Iterable

from node.core import proc
from node.core.errors import Json
from node.rules import secret
from node.rules.secret import SECRETS_PATH

# Who the host is and which boot this is.


def _os_release() -> dict[str, str]:
    """Gives /etc/os-release as a map (man 5 os-release)."""
    pairs = (line.partition("=") for line in proc.read_text("/etc/os-release").splitlines())
    return {name: value.strip("\"'") for name, _, value in pairs}


def read_identity() -> Json:
    """Gives the host's identity; it never fails, an unknown field is empty."""
    release = _os_release()
    uname = os.uname()
    uptime = proc.read_text("/proc/uptime").split() or ["0"]
    return {
        "hostname": uname.nodename,
        "machine_id": proc.read_text("/etc/machine-id"),
        "boot_id": proc.boot_id(),
        "arch": uname.machine,
        "os_id": release.get("ID", ""),
        "os_version": release.get("VERSION_ID", ""),
        "kernel": uname.release,
        "cmdline": secret.masked_cmdline(proc.read_text("/proc/cmdline")),
        "uptime_s": float(uptime[0]),
        "clock_unix_s": time.time(),
        "effective_uid": os.geteuid(),
        "python": sys.version.split()[0],
    }


# The files and the disk room that the request names.

MAX_CONTENT = 64 * 1024


def _hash(fd: int) -> tuple[str, bytes]:
    """Gives the sha256 of an open file and its first MAX_CONTENT + 1 bytes."""
    digest, head = hashlib.sha256(), b""
    while True:
        chunk = os.read(fd, 1 << 20)
        if not chunk:
            return digest.hexdigest(), head
        digest.update(chunk)
        if len(head) <= MAX_CONTENT:
            head = (head + chunk)[: MAX_CONTENT + 1]


def _text(head: bytes) -> str | None:
    """Gives the bytes as text, or None when they are too many or are not UTF-8 text."""
    if len(head) > MAX_CONTENT or b"\0" in head:
        return None
    try:
        return head.decode("utf-8")
    except UnicodeDecodeError:
        return None


def file_state(path: str) -> Json:
    """Gives one path's state; a link is not followed. A folder's size is its number of entries.

    Of a file that others may not read only an environment file's text is given, secrets masked;
    of the engine's secrets the names.
    """
    answer: Json = dict.fromkeys(("sha256", "size", "mode", "uid", "gid", "content"))
    answer["path"] = path
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {**answer, "kind": "absent"}
    answer.update(mode=f"{stat.S_IMODE(info.st_mode):04o}", uid=info.st_uid, gid=info.st_gid)
    if stat.S_ISLNK(info.st_mode):
        return {**answer, "kind": "link"}
    if stat.S_ISDIR(info.st_mode):
        return {**answer, "kind": "directory", "size": len(os.listdir(path))}
    if not stat.S_ISREG(info.st_mode):
        return {**answer, "kind": "other"}
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        answer["size"] = os.fstat(fd).st_size
        answer["sha256"], head = _hash(fd)
    finally:
        os.close(fd)
    text = _text(head)
    private = not info.st_mode & stat.S_IROTH
    secrets = os.path.basename(path) == os.path.basename(SECRETS_PATH)
    if text and (private or secrets):
        text = secret.masked_env_file(text, every=secrets)
    answer["content"] = text
    return {**answer, "kind": "file"}


def read_files(paths: Iterable[str]) -> list[Json]:
    """Gives the states of the named paths, in their order."""
    found = []
    for path in paths:
        with proc.waiting_for(path):
            found.append(file_state(path))
    return found


def _mount_of(path: str) -> str:
    """Gives the mount point that holds an existing path (it ends at the root folder)."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def disks_of_files(paths: Iterable[str]) -> list[Json]:
    """Gives the room, in bytes, where each path is or would be."""
    found: list[Json] = []
    for path in paths:
        there = path
        with proc.waiting_for(path):
            while not os.path.exists(there):
                there = os.path.dirname(there)
            room, mount = os.statvfs(there), _mount_of(there)
        found.append(
            {
                "path": path,
                "mount": mount,
                "total": room.f_blocks * room.f_frsize,
                "free": room.f_bavail * room.f_frsize,
                "inodes_free": room.f_favail,
                "read_only": bool(room.f_flag & os.ST_RDONLY),
            }
        )
    return found


# The venvs that the request names, read from their files: nothing of a venv is run.
#
# A venv breaks in pieces: `pip uninstall` takes bin/vllm (status 127), an upgrade of the system's
# Python takes the interpreter, a restore to another path leaves shebangs that lead nowhere.

# what an upgrade changes and a recipe or a compatibility entry names
DISTRIBUTIONS = ("vllm", "torch", "transformers")
_INFO = re.compile(r"^([A-Za-z0-9_.]+?)-([^-]+)\.dist-info$")
LOGIND = ("/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf")
_LOGIND_DROP_INS = ("/usr/lib", "/usr/local/lib", "/run", "/etc")
# login.defs, SYS_UID_MAX: logind leaves system users alone
SYSTEM_UID_MAX = 999


def read_venvs(probes: list[Json]) -> list[Json]:
    """Gives what each probe (`path`, `user`) finds, in their order."""
    return [read_venv(str(probe["path"]), str(probe["user"])) for probe in probes]


def read_venv(path: str, user: str) -> Json:
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
