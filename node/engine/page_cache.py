"""caches: drop the page cache once, before a launch, and only where the memory is needed."""

from __future__ import annotations

import os

from node.change import journal, transaction
from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.core.systemctl import BOOTED, inspect_unit
from node.docker import api
from node.reap.find import Candidate, inspect_processes
from node.reap.ownership import own_ancestors
from node.reap.proof import measure
from node.snapshot import memory

DROP = "/proc/sys/vm/drop_caches"
# pages and slab objects (Documentation/admin-guide/sysctl/vm.rst)
_ALL = b"3\n"
SYNC_S = 120.0


def _measure() -> Json:
    """Gives the memory in bytes and the GPU's processes."""
    return {**measure(), **memory.read()}


def _met(seen: Json, available: float | None, free: float | None) -> bool:
    """Gives True when both needs are met; none is met always."""
    return (available is None or seen["available"] >= available) and (
        free is None or seen["free"] >= free
    )


def _engines() -> list[Candidate]:
    """Gives the engine processes that live on this host, loading or serving."""
    view = inspect_processes((), "", None)
    ours = own_ancestors(view.stats)
    return [
        one for pid, one in sorted(view.candidates.items()) if one.is_proven and pid not in ours
    ]


def running(name: str) -> str:
    """Gives what loads or runs an engine on this host now, in words, or "".

    `name` is the container's name, and the unit's without its suffix. A unit that starts this very
    program (its ExecStartPre) does not count.
    """
    for one in _engines():
        return f"pid {one.stat.pid} {one.argv0[:60]} is an engine ({one.signs[0]})"
    service = f"{name}.service"
    try:
        if os.path.exists(api.SOCKET):
            row = api.get(f"/containers/{name}/json", absent_ok=True)
            if row and row["State"].get("Running"):
                return f"the container {name} runs"
    except CannotRead as error:
        return f"whether the container {name} runs is not known: {error}"
    if proc.unit_of(proc.cgroup(os.getpid())) == service or not os.path.isdir(BOOTED):
        return ""
    now = inspect_unit(service)["active"]
    return f"the unit {service} is {now}" if now in ("active", "activating", "reloading") else ""


def caches(request: Json) -> Json:
    """Drop the caches when a need is not met; gives verdict, met, why, before, after and change.

    Verdict: "nothing" (no need, or met without), "refused" (an engine loads or runs), "dropped",
    "would_drop" (dry). Raises NodeError for a bad request, a held lock, another open change, and
    where the kernel does not let us.
    """
    keys = ("change", "need_available_bytes", "need_free_bytes", "unless_running", "dry")
    body = validate.keys(request, "request", keys)
    header = body.get("change")
    checked = None if header is None else journal.parse_change(header)
    needs: list[float | None] = [
        None if body.get(key) is None else validate.number(body[key], key, 0, 1 << 50)
        for key in ("need_available_bytes", "need_free_bytes")
    ]
    name = validate.image(body.get("unless_running", "rigbook-engine"), "unless_running")
    dry = validate.boolean(body.get("dry", False), "dry")
    with transaction.opened(None if dry else checked, "caches") as log:
        return _caches(needs, name, dry, log)


def _caches(needs: list[float | None], name: str, dry: bool, log: transaction.Transaction) -> Json:
    """Do it, with the request checked."""
    before = _measure()
    if needs == [None, None] or _met(before, *needs):
        why = "no need was given" if needs == [None, None] else "there is enough"
        return _answer("nothing", why, before, before, needs, log)
    busy = running(name)
    if busy:
        why = f"{busy}; caches are dropped before a launch only"
        return _answer("refused", why, before, before, needs, log)
    if dry:
        return _answer("would_drop", "the need is not met", before, before, needs, log)
    fd = _open()
    try:
        entry = log.begin("caches", before=before)
        _drop(fd)
    finally:
        os.close(fd)
    after = _measure()
    entry.update(state="done", after=after)
    log.write()
    gained = after["free"] - before["free"]
    return _answer("dropped", f"MemFree rose by {gained} bytes", before, after, needs, log)


def _answer(
    verdict: str,
    why: str,
    before: Json,
    after: Json,
    needs: list[float | None],
    log: transaction.Transaction,
) -> Json:
    """Gives the answer."""
    return {"verdict": verdict, "met": _met(after, *needs), "why": why, "before": before,
            "after": after, "change": log.change_id}  # fmt: skip


def _open() -> int:
    """Gives the opened switch. Raises NodeError (`no_drop_caches`) where we may not write it."""
    try:
        return os.open(DROP, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(error) from None


def _refused(error: OSError) -> NodeError:
    """Gives the error for a kernel that does not let us."""
    return NodeError(
        f"{DROP}: {error.strerror}: the caches cannot be dropped here", "no_drop_caches",
        "run as root on the host itself, not in a container",
    )  # fmt: skip


def _drop(fd: int) -> None:
    """Write dirty pages back, since they cannot be dropped; then drop once."""
    try:
        done = run(["sync"], SYNC_S)
    except TimedOut:
        raise NodeError(f"sync did not end in {SYNC_S:g} s", "io", "look for a slow disk") from None
    if done.rc:
        raise NodeError(f"sync: {done.last_line()}", "io")
    try:
        os.write(fd, _ALL)
    except OSError as error:
        raise _refused(error) from None
