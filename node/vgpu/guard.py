"""library guard: notices that the plugin put its own library back, tells, and mends if it may.

Run by rigbook-library.path when the file changes, and by a timer for what inotify misses. It
waits while a change is open: it is then the operator's run that moves the file.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import secrets
import stat
import time

from node.change import apply as change_apply
from node.change import close as change_close
from node.change import journal
from node.core import log
from node.core.errors import Json, NodeError
from node.files import atomic, state_dir, state_file
from node.vgpu import state as vgpu_state
from node.vgpu.state import State
from node.watch import config, notices

# a plugin that fights back is not fought for ever: each time it may kill who has the file mapped
MOST, WINDOW_S = 5, 3600.0
SETTLE_S = 1.0
MAX_PENDING = 20


def file_path() -> str:
    """Gives where the guard's memory lies between two looks."""
    return os.path.join(state_dir.root(), "library", "guard.json")


def save_state(memory: Json) -> None:
    """Write the memory; it is on the disk on return."""
    state_dir.ensure()
    state_file.save(file_path(), memory)


def digest(path: str) -> str:
    """Gives the file's sha256, or `absent`, or `no plain file`."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return "no plain file"
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(atomic.MAX_BYTES)).hexdigest()
    except FileNotFoundError:
        return "absent"


def stable_digest(path: str) -> str:
    """Gives `digest` once two looks agree: a plugin's cp may be in the middle of the file."""
    now = digest(path)
    while True:
        time.sleep(SETTLE_S)
        again = digest(path)
        if again == now:
            return now
        now = again


def verdict(known: State, found: str) -> str:
    """Gives what lies there: `ours`, `original`, `absent`, or `other`."""
    names = {known.ours: "ours", known.original: "original", "absent": "absent"}
    return names.get(found, "other")


def judge(known: State, status: str, memory: Json, now: float) -> str | None:
    """Gives what to do about a status: `mend`, `tell`, or None. Pure.

    Told once for each change of the status. `other` is never overwritten: it may be a new plugin's
    own, fixed library.
    """
    if status == "ours":
        return "tell" if memory["status"] != "ours" else None
    recent = [at for at in memory["mended"] if 0 <= now - at < WINDOW_S]
    if status == "original" and known.reapply and len(recent) < MOST:
        return "mend"
    return "tell" if memory["status"] != status else None


def message(known: State, status: str, mended: bool, found: str) -> str:
    """Gives the line that a person reads."""
    where = f"{known.target} on {known.node}"
    if mended:
        return f"the plugin had put its own library back: {where} is ours again ({known.ours[:12]})"
    return {
        "ours": f"{where} is ours again ({known.ours[:12]})",
        "original": f"the plugin put its own library back: {where} is {known.original[:12]}, "
        f"not ours ({known.ours[:12]}); mend it with: deploys/libvgpu.py",
        "absent": f"{where} is gone; mend it with: deploys/libvgpu.py",
        "other": f"{where} is neither ours nor the original: {found[:12]}; a new plugin version? "
        "it is left as it is",
    }[status]


def mend(known: State) -> str:
    """Put our library in place of the original, as a change of its own; gives the change's id."""
    info = os.stat(known.target)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    identifier = f"{stamp}-guard-{secrets.token_hex(2)}"
    step = {
        "op": "file",
        "path": known.target,
        "blob": known.ours,
        "expect_sha256": known.original,
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "owner": pwd.getpwuid(info.st_uid).pw_name,
        "group": grp.getgrgid(info.st_gid).gr_name,
    }
    header = {"id": identifier, "deploy": "libvgpu", "operator": "rigbook-library guard"}
    change_apply.apply({"change": header, "steps": [step]})
    end = {"change": identifier, "status": "COMMITTED", "reason": "the guard put it back"}
    try:
        change_close.close(end)
    except NodeError as error:
        # overwritten again by now: a change of ours that stays open would keep everybody out
        for status in ("INCONSISTENT", "COMMITTED"):
            change_close.close({**end, "status": status, "reason": str(error)[:2000]})
        raise
    return identifier


def inspect_target(known: State) -> None:
    """One look: tells and mends; the memory is written before and after what is told."""
    found = digest(known.target)
    if found != known.ours:
        found = stable_digest(known.target)
    if journal.operator_at_work():
        log.say("a change is open: not the guard's turn")
        return
    fresh: Json = {"status": "ours", "mended": [], "pending": []}
    memory, now = state_file.load(file_path(), fresh), time.time()
    status = verdict(known, found)
    todo, failed = judge(known, status, memory, now), None
    if todo == "mend":
        try:
            mend(known)
            memory["mended"] = [at for at in memory["mended"] if now - at < WINDOW_S] + [now]
        except NodeError as error:
            failed = str(error)
    mended = todo == "mend" and failed is None
    if mended or todo == "tell" or (failed and memory["status"] != status):
        text = message(known, status, mended, found) + (f" ({failed})" if failed else "")
        log.say(text, log.WARNING)
        shown = "mended" if mended else status
        memory["pending"].append(
            {"rig": known.rig, "node": known.node, "status": f"library-{shown}", "text": text}
        )
    memory["pending"] = memory["pending"][-MAX_PENDING:]
    memory["status"] = "ours" if mended else status
    save_state(memory)
    url = config.webhook_url(known.webhook, known.webhook_file)
    notices.deliver(memory["pending"], url, lambda: save_state(memory))


def run() -> None:
    """The verb: one look at the library that was swapped; nothing where none was."""
    known = vgpu_state.read()
    if known is not None and known.guard:
        inspect_target(known)
