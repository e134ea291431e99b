"""library check: what a candidate is, and whether a fresh process here loads it. Writes no file."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import subprocess
import time
from typing import Any

from node.core import mapped_files, proc
from node.core import validate as core_validate
from node.core.errors import Json
from node.vgpu import elf

LOAD_S = 10.0
NOBODY = 65534
_MISSING = re.compile(r"^\s*(\S+) => not found", re.M)


def decoded(value: Any, where: str) -> bytes:
    """Gives a library's bytes from base64. Raises NodeError when it is none, or too large."""
    try:
        if not isinstance(value, str):
            raise core_validate.bad(f"{where} is not text")
        raw = base64.b64decode(value.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise core_validate.bad(f"{where} cannot be decoded") from None
    if len(raw) > elf.MAX_BYTES:
        raise core_validate.bad(f"{where} is larger than {elf.MAX_BYTES >> 20} MiB")
    return raw


def candidate(request: Any) -> Json:
    """Gives what a library is (`content_base64`, nothing is written), or how a fresh process maps
    the one at `path`: its inode and the sha256 of what is mapped.
    """
    body = core_validate.keys(request, "request", ("content_base64", "path"))
    if "path" in body:
        return mapped(core_validate.path(body["path"], "path"))
    raw = decoded(body.get("content_base64"), "content_base64")
    answer: Json = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    answer.update(elf.described(raw), missing=[], refused=None)
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
