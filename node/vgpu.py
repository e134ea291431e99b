"""HAMi's library: its ELF, a candidate's check, what is installed."""

from __future__ import annotations

import base64
import binascii
import contextlib
import grp
import hashlib
import os
import pwd
import re
import stat
import struct
import subprocess
import time
from typing import Any, NamedTuple

from node.core import mapped_files, proc, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.engine import config
from node.kube import kubectl

# HAMi's libvgpu: what is mounted, what a candidate is, the guard that puts ours back.

# Read a shared library: class, machine, whether it is whole, what it exports and needs.
#
# Only the ELF file's own tables are read, with every offset checked against the file's size: what
# comes here may be cut off, or be anything (elf(5)).

MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86-64", 183: "aarch64",
            243: "riscv", 258: "loongarch"}  # fmt: skip
SHARED = 3
_NOBITS, _DYNAMIC, _DYNSYM, _STRTAB = 8, 6, 11, 3
_LOAD = 1
_NEEDED, _SONAME = 1, 14
# a definition that others can bind to: GLOBAL, WEAK or GNU_UNIQUE, visible by default or protected
_BINDINGS, _VISIBLE = (1, 2, 10), (0, 3)
MAX_SYMBOLS = 200_000
# all names of a library together: overlapping ones would be more than its file
MAX_NAMES = 64 << 20
# a request carries a library; one of HAMi has less than 1 MB
MAX_BYTES = 24 << 20


class BrokenElf(Exception):
    """Not an ELF file, or not a whole one; the text says what is wrong."""


class Elf(NamedTuple):
    """A shared library's own words about itself; names sorted, `needed` in the file's order."""

    bits: int
    machine: str
    shared: bool
    soname: str
    exported: tuple[str, ...]
    needed: tuple[str, ...]


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int
    entry: int


class _Reader:
    """The file's bytes with the byte order and the word size of its header."""

    def __init__(self, raw: bytes) -> None:
        if raw[:4] != b"\x7fELF":
            start = raw[:8].hex() or "nothing"
            raise BrokenElf(f"not an ELF file (starts with {start})")
        if len(raw) < 64:
            raise BrokenElf(f"cut off: {len(raw)} bytes, not even its header")
        if raw[4] not in (1, 2) or raw[5] not in (1, 2):
            raise BrokenElf("an ELF header of no known class or byte order")
        self.raw = raw
        self.wide = raw[4] == 2
        self.order = "<" if raw[5] == 1 else ">"

    def unpack(self, layout: str, offset: int, what: str) -> tuple[int, ...]:
        """Gives numbers at an offset. Raises BrokenElf when they are beyond the end."""
        full = self.order + layout
        if offset < 0 or offset + struct.calcsize(full) > len(self.raw):
            raise BrokenElf(f"cut off: {what} would end at byte {offset + struct.calcsize(full)} "
                            f"of {len(self.raw)}")  # fmt: skip
        return struct.unpack_from(full, self.raw, offset)

    def require(self, offset: int, size: int, what: str) -> None:
        """Raise BrokenElf when a part of the file is beyond its end."""
        if offset < 0 or size < 0 or offset + size > len(self.raw):
            raise BrokenElf(f"cut off: {what} ends at byte {offset + size} of {len(self.raw)}")


def machine_of(raw: bytes) -> tuple[int, str]:
    """Gives bits and machine of a file's first 64 bytes. Raises BrokenElf when it is no ELF."""
    reader = _Reader(raw)
    number = reader.unpack("H", 18, "its machine")[0]
    return 64 if reader.wide else 32, MACHINES.get(number, f"machine {number}")


def parse_elf(raw: bytes) -> Elf:
    """Gives what a library says of itself. Raises BrokenElf for anything that is not whole."""
    reader = _Reader(raw)
    bits, machine = machine_of(raw[:64])
    kind = reader.unpack("H", 16, "its type")[0]
    if reader.wide:
        layout = reader.unpack("QQQIHHHHHH", 24, "its header")
    else:
        layout = reader.unpack("IIIIHHHHHH", 24, "its header")
    _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = layout
    _check_segments(reader, phoff, phentsize, phnum)
    sections = _sections(reader, shoff, shentsize, shnum)
    entries = _dynamic(reader, sections)
    soname = entries.get(_SONAME, [""])[0]
    return Elf(
        bits,
        machine,
        kind == SHARED,
        soname,
        tuple(sorted(set(_exported(reader, sections)))),
        tuple(entries.get(_NEEDED, [])),
    )


def described_elf(raw: bytes) -> dict[str, Any]:
    """Gives `elf` (its tables) and `broken` (why there are none); one of them is null."""
    try:
        found = parse_elf(raw)
    except BrokenElf as error:
        return {"elf": None, "broken": str(error)}
    return {"elf": dict(found._asdict()), "broken": None}


def _check_segments(reader: _Reader, offset: int, size: int, count: int) -> None:
    """Raise BrokenElf when a part that is loaded into memory is not all there."""
    for n in range(count):
        at = offset + n * size
        if reader.wide:
            kind, _, start, _, _, length = reader.unpack("IIQQQQ", at, "a program header")
        else:
            kind, start, _, _, length = reader.unpack("IIIII", at, "a program header")
        if kind == _LOAD:
            reader.require(start, length, "a part that is loaded")


def _sections(reader: _Reader, offset: int, size: int, count: int) -> list[_Section]:
    """Gives the section headers, each section's bytes checked to be there."""
    if not offset or not count:
        raise BrokenElf("it has no section headers (stripped of them, or cut off)")
    found: list[_Section] = []
    for n in range(count):
        at = offset + n * size
        if reader.wide:
            row = reader.unpack("IIQQQQIIQQ", at, "a section header")
        else:
            row = reader.unpack("IIIIIIIIII", at, "a section header")
        section = _Section(row[1], row[4], row[5], row[6], row[9])
        if section.kind not in (0, _NOBITS):
            reader.require(section.offset, section.size, f"section {n}")
        found.append(section)
    return found


class _Names:
    """The string table that a section's link names."""

    def __init__(self, reader: _Reader, sections: list[_Section], link: int) -> None:
        if not 0 < link < len(sections) or sections[link].kind != _STRTAB:
            raise BrokenElf(f"section {link} is not the string table that another one names")
        self._raw, self._start = reader.raw, sections[link].offset
        self._end = self._start + sections[link].size
        self._left = MAX_NAMES

    def at(self, offset: int) -> str:
        """Gives the name at an offset. Raises BrokenElf."""
        start = self._start + offset
        end = self._raw.find(b"\0", start, min(self._end, start + self._left))
        if start >= self._end or end < 0:
            raise BrokenElf("a name lies beyond its string table, or the names overlap")
        self._left -= end - start
        return self._raw[start:end].decode("utf-8", "replace")


def _only(sections: list[_Section], kind: int) -> list[_Section]:
    """Gives the section of a kind of which a file has one at most (elf(5)), if there is one."""
    found = [section for section in sections if section.kind == kind]
    if len(found) > 1:
        raise BrokenElf(f"it has {len(found)} sections of a kind of which there is one")
    return found


def _exported(reader: _Reader, sections: list[_Section]) -> list[str]:
    """Gives the names that the dynamic symbol table defines for others."""
    names: list[str] = []
    for section in _only(sections, _DYNSYM):
        table = _Names(reader, sections, section.link)
        size = 24 if reader.wide else 16
        if section.entry != size or section.size // size > MAX_SYMBOLS:
            raise BrokenElf("its dynamic symbol table has an unknown shape")
        for at in range(section.offset, section.offset + section.size // size * size, size):
            if reader.wide:
                name, info, other, index, _, _ = reader.unpack("IBBHQQ", at, "a symbol")
            else:
                name, _, _, info, other, index = reader.unpack("IIIBBH", at, "a symbol")
            if index and info >> 4 in _BINDINGS and other & 3 in _VISIBLE:
                names.append(table.at(name))
    return names


def _dynamic(reader: _Reader, sections: list[_Section]) -> dict[int, list[str]]:
    """Gives the NEEDED and SONAME entries by tag."""
    found: dict[int, list[str]] = {}
    for section in _only(sections, _DYNAMIC):
        table = _Names(reader, sections, section.link)
        size = 16 if reader.wide else 8
        for at in range(section.offset, section.offset + section.size // size * size, size):
            tag, value = reader.unpack("QQ" if reader.wide else "II", at, "a dynamic entry")
            if tag == 0:
                break
            if tag in (_NEEDED, _SONAME):
                found.setdefault(tag, []).append(table.at(value))
    return found


# library check: what a candidate is, and whether a fresh process here loads it. Writes no file.

LOAD_S = 10.0
NOBODY = 65534
_MISSING = re.compile(r"^\s*(\S+) => not found", re.M)


def decoded(value: Any, where: str) -> bytes:
    """Gives a library's bytes from base64. Raises NodeError when it is none, or too large."""
    try:
        if not isinstance(value, str):
            raise validate.bad(f"{where} is not text")
        raw = base64.b64decode(value.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise validate.bad(f"{where} cannot be decoded") from None
    if len(raw) > MAX_BYTES:
        raise validate.bad(f"{where} is larger than {MAX_BYTES >> 20} MiB")
    return raw


def check_candidate(request: Any) -> Json:
    """Gives what a library is (`content_base64`, nothing is written), or how a fresh process maps
    the one at `path`: its inode and the sha256 of what is mapped.
    """
    body = validate.keys(request, "request", ("content_base64", "path"))
    if "path" in body:
        return mapped(validate.path(body["path"], "path"))
    raw = decoded(body.get("content_base64"), "content_base64")
    answer: Json = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    answer.update(described_elf(raw), missing=[], refused=None)
    if answer["broken"] is None:
        answer["missing"], answer["refused"] = tried(raw)
    return answer


def mapped(path: str) -> Json:
    """Gives inode and sha256 of the file that a fresh process with LD_PRELOAD=path has mapped."""
    child = _start(["/bin/sleep", str(int(LOAD_S))], {"LD_PRELOAD": path}, ())
    found: mapped_files.Mapping | None = None
    digest: str | None = None
    try:
        deadline = time.monotonic() + 2.0
        while found is None and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            raw = proc.read_bytes(f"/proc/{child.pid}/maps") or b""
            rows = mapped_files.parse(raw.decode("utf-8", "replace"), os.path.basename(path))
            found = next((row for row in rows if row.path == path), None)
        if found is not None:
            digest = mapped_files.digest_of(child.pid, found)
    finally:
        child.kill()
        out, _ = child.communicate()
    said = out.decode("utf-8", "replace").strip()[-300:]
    inode = None if found is None else found.inode
    return {"path": path, "inode": inode, "sha256": digest, "said": said}


def tried(raw: bytes) -> tuple[list[str], str | None]:
    """Gives (NEEDED libraries that this host lacks, why a process cannot load it or None)."""
    fd = os.memfd_create("candidate", 0)
    try:
        os.fchmod(fd, 0o755)
        view = memoryview(raw)
        while view:
            view = view[os.write(fd, view) :]
        path = f"/proc/self/fd/{fd}"
        traced = _run(["/bin/true"], {"LD_PRELOAD": path, "LD_TRACE_LOADED_OBJECTS": "1"}, fd)
        missing = sorted(set(_MISSING.findall(traced[1])) - {path})
        status, said = _run(["/bin/true"], {"LD_PRELOAD": path}, fd)
        if status != 0:
            return missing, f"LD_PRELOAD=CANDIDATE /bin/true ends with {status}: {said[-200:]}"
        # ld.so goes on without a library that it cannot load: only the maps prove that it did
        _, maps = _run(["/bin/cat", "/proc/self/maps"], {"LD_PRELOAD": path}, fd)
        if "memfd:candidate" not in maps:
            told = next((row for row in said.splitlines() if "ld.so" in row), said[-200:])
            return missing, f"the loader leaves it out: {told.replace(path, 'CANDIDATE')}"
        return missing, None
    finally:
        os.close(fd)


def _start(argv: list[str], env: dict[str, str], keep: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Starts a process of nobody with these variables alone."""

    def become_nobody() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", **env},
        pass_fds=keep,
        preexec_fn=become_nobody,
        start_new_session=True,
        cwd="/",
    )


def _run(argv: list[str], env: dict[str, str], fd: int) -> tuple[Any, str]:
    """Gives exit status (or what happened instead) and output of a fresh process of nobody."""
    child = _start(argv, env, (fd,))
    try:
        out, _ = child.communicate(timeout=LOAD_S)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)
        return f"no end within {LOAD_S:g} s", ""
    return child.returncode, out.decode("utf-8", "replace").strip()


# library look: the library folder as it is, who maps what of it, and what the plugin says.

_BASE = re.compile(r"^[A-Za-z0-9._+-]{1,80}$")


def guarded(read: Any) -> Any:
    """Gives what `read` gives, or why it cannot be read."""
    try:
        return read()
    except (CannotRead, NodeError) as error:
        return {"unreadable": str(error)}
    except OSError as error:
        return {"unreadable": io_reason(error)}
    except (ValueError, KeyError, TypeError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def inspect_library(request: Any) -> Json:
    """Gives the folder's libraries, their mappers, the preload files, plugins, pods and our state.

    Request: `folder`, `base` (`libvgpu.so`), `kubectl` and `kubeconfig` (null: not asked).
    """
    body = validate.keys(
        request, "request", ("folder", "base", "kubectl", "kubeconfig"), ("folder",)
    )
    folder = validate.path(body["folder"], "folder")
    base = validate.text(body.get("base") or "libvgpu.so", "base", 80)
    if not _BASE.match(base):
        raise validate.bad(f"base: {base!r} is not a file's name")
    words = body.get("kubectl")
    where = body.get("kubeconfig")
    if words is not None:
        validate.choice(words, "kubectl", kubectl.CLIENTS)
    with open("/proc/self/exe", "rb") as file:
        bits, machine = machine_of(file.read(64))
    preload = ("/etc/ld.so.preload", os.path.join(folder, "ld.so.preload"))
    return {
        "folder": folder,
        "host": {"bits": bits, "machine": machine},
        "files": guarded(lambda: files(folder, base)),
        "preload": {path: guarded(lambda path=path: text_of(path)) for path in preload},
        "mappers": guarded(lambda: mapped_files.mappers(base)),
        "plugins": None if words is None else guarded(lambda: plugins(words, where, folder)),
        "pods": None if words is None else guarded(lambda: pods(words, where)),
        "state": guarded(config.load_library),
    }


def text_of(path: str) -> str | None:
    """Gives a small text file's content; None where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except FileNotFoundError:
        return None


def files(folder: str, base: str) -> list[Json]:
    """Gives the folder's entries named `base` or `base.VERSION`, with what ELF says of each."""
    found: list[Json] = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    for name in names:
        if name == base or name.startswith(base + "."):
            found.append(_file(os.path.join(folder, name)))
    return found


def _file(path: str) -> Json:
    """Gives one entry: kind, owner, hash and its own tables (`elf`), or why they are not read."""
    info = os.lstat(path)
    row: Json = {
        "path": path,
        "kind": "file" if stat.S_ISREG(info.st_mode) else "other",
        "size": info.st_size,
        "inode": info.st_ino,
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "uid": info.st_uid,
        "gid": info.st_gid,
        "owner": _name(lambda: pwd.getpwuid(info.st_uid).pw_name, info.st_uid),
        "group": _name(lambda: grp.getgrgid(info.st_gid).gr_name, info.st_gid),
        "sha256": None,
        "elf": None,
        "broken": None,
    }
    if row["kind"] != "file":
        row["broken"] = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "not a plain file"
        return row
    if info.st_size > MAX_BYTES:
        row["broken"] = f"larger than {MAX_BYTES >> 20} MiB"
        return row
    with open(path, "rb") as file:
        raw = file.read()
    row["sha256"] = hashlib.sha256(raw).hexdigest()
    row.update(described_elf(raw))
    return row


def _name(find: Any, number: int) -> str:
    """Gives a user's or group's name, or its number where it has none."""
    try:
        return str(find())
    except KeyError:
        return str(number)


def plugins(words: Any, where: Any, folder: str) -> list[Json]:
    """Gives the containers of DaemonSets that mount the folder or one above it from the host."""
    found: list[Json] = []
    client = kubectl.client(words, where)
    for item in client.json(["get", "daemonsets", "--all-namespaces"])["items"]:
        spec = item["spec"]["template"]["spec"]
        hosts = [(v.get("hostPath") or {}).get("path") for v in spec.get("volumes") or []]
        inside = folder + "/"
        mounted = [path for path in hosts if path and inside.startswith(path.rstrip("/") + "/")]
        if not mounted:
            continue
        for box in spec.get("containers") or []:
            found.append(
                {
                    "namespace": item["metadata"]["namespace"],
                    "name": item["metadata"]["name"],
                    "container": box["name"],
                    "image": str(box.get("image", "")),
                    "args": [str(w) for key in ("command", "args") for w in box.get(key) or []],
                    "mounts": mounted,
                }
            )
    return found


def pods(words: Any, where: Any) -> dict[str, Json]:
    """Gives the cluster's pods by uid: namespace, name, phase, and who owns each."""
    found: dict[str, Json] = {}
    client = kubectl.client(words, where)
    for item in client.json(["get", "pods", "--all-namespaces"])["items"]:
        meta = item["metadata"]
        owner = (meta.get("ownerReferences") or [{}])[0]
        found[meta["uid"]] = {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "phase": str((item.get("status") or {}).get("phase", "")),
            "owner_kind": str(owner.get("kind", "")),
            "owner": str(owner.get("name", "")),
        }
    return found
