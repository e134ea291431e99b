"""The host's journal: one JSON file a change, rewritten whole and flushed at each transition.

Its first key is a checksum of the others. One that an older program wrote has none, or a former one
in the order of the alphabet: that one is not looked at. What its values are is checked at each
reading, so that nothing is done after a record that lies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Callable
from typing import Any

from node.core import errors, files, proc, systemctl, validate
from node.core.errors import Json, NodeError

# How far a recorded step came, and what it is about: all that the snapshot needs of it.

# an announced step ends in one of these; "unknown": what became of it could not be found out
DONE, UNDONE, FAILED, UNKNOWN, INTENT = "done", "undone", "failed", "unknown", "intent"


def subject(entry: Json) -> str:
    """Gives what a step is about: its path, its unit, else its own name."""
    keys = ("path", "unit", "image", "tool", "engine", "container", "op")
    about = (entry.get(key) for key in keys)
    return str(next((value for value in about if value), "step"))


FORMAT = 1
STATUSES = ("OPEN", "COMMITTED", "ROLLED_BACK", "INCONSISTENT")
UNSETTLED = ("OPEN", "INCONSISTENT")
_KEYS = ("id", "deploy", "operator", "status", "opened_unix_s", "closed_unix_s", "boot_id",
         "reason", "steps")  # fmt: skip


def path_of(change_id: str) -> str:
    """Gives the file of a change."""
    return os.path.join(files.journal_folder(), change_id + ".json")


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _unix_s(value: Any) -> bool:
    return (_whole(value) or isinstance(value, float)) and 0 <= value < 1e11


def _path(value: Any) -> bool:
    return _text(value) and value.startswith("/") and os.path.normpath(value) == value


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(_text(text) for text in value.values())


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _holds(value: Any) -> bool:
    """Gives whether these are drop-ins that hold a unit (systemd/hold.py): undo removes them."""
    pattern = re.escape(systemctl.BOOTED) + r"/[^/]+\.d/" + re.escape(systemctl.HOLD)
    return isinstance(value, list) and all(map(_matches(pattern), value))


_Checks = dict[str, Callable[[Any], bool]]
_CHANGE: _Checks = {
    **dict.fromkeys(("id", "deploy", "operator", "boot_id"), _text),
    "status": lambda value: value in STATUSES,
    "opened_unix_s": _unix_s,
    "closed_unix_s": _or_none(_unix_s),
    "saved_unix_s": _unix_s,
    "reason": _or_none(_text),
    "run": _or_none(_text),
    "program": _or_none(_path),
    "number": _whole,
    "waivers": lambda value: isinstance(value, list) and all(map(_texts, value)),
    "held": _holds,
    "taken": _or_none(_table),
    "lease": _or_none(_table),
    "steps": lambda value: isinstance(value, list) and all(map(_table, value)),
}
_TAKEN: _Checks = {"operator": _text, "deploy": _text, "unix_s": _unix_s}
_LEASE: _Checks = {"seconds": _unix_s, "phase": _text}
_STEP: _Checks = {
    "op": _text,
    "state": lambda value: value in (DONE, UNDONE, FAILED, UNKNOWN, INTENT),
    "path": _path,
    "source": _or_none(_path),
    **dict.fromkeys(("words", "why", "left", "unit"), _text),
    # undo removes it
    "temp": _matches(re.escape(files.TEMP_PREFIX) + "[^/]*"),
}
_OF_PATH: _Checks = {"pre": _table, "post": _table, "xattrs": _texts}
# folders that are removed whole: their names are ours
_OURS = _matches(r"/(.*/)?\.rigbook-[^/]+")
_OF_OP: dict[str, _Checks] = {
    **dict.fromkeys(("file", "absent", "directory", "link"), _OF_PATH),
    "work": {"path": _OURS},
    "kube": {"edit": _texts},
    "weights_set": {"displaced": _matches("displaced-[^/]+")},
}
_ENTRY: _Checks = {
    **dict.fromkeys(("kind", "target"), _text),
    **dict.fromkeys(("uid", "gid"), _whole),
    "mode": _matches("[0-7]{4}"),
    "sha256": _matches("[0-9a-f]{64}"),
    "xattrs": _texts,
}


def _check(row: Json, checks: _Checks, where: str = "") -> None:
    """Raises ValueError for a value that no program wrote there."""
    for key, is_right in checks.items():
        if key in row and not is_right(row[key]):
            raise ValueError(f"{where}{key} is {json.dumps(row[key])[:80]}")


def _check_step(step: Json, where: str) -> None:
    if not {"op", "state"} <= step.keys():
        raise ValueError(f"{where}op or {where}state is missing")
    _check(step, _STEP, where)
    _check(step, _OF_OP.get(step["op"], {}), where)
    if _OF_OP.get(step["op"]) is _OF_PATH:
        for side in ("pre", "post"):
            _check(step.get(side, {}), _ENTRY, f"{where}{side}.")


def _sum(change: Json) -> str:
    text = json.dumps(change, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse(raw: bytes, change_id: str) -> Json:
    """Gives a change of its file's bytes. Raises ValueError when it is not one, or is damaged."""
    try:
        change = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(change, dict) or change.get("id") != change_id:
        raise ValueError("not the change that its name says")
    first = next(iter(change))
    noted = change.pop("sha256", None)
    if first == "sha256" and noted != _sum(change):
        raise ValueError("its checksum does not fit: it was edited, or the disk lost a write")
    if missing := [key for key in (*_KEYS, "number") if key not in change]:
        raise ValueError(f"{', '.join(missing)} is missing")
    _check(change, _CHANGE)
    _check(change.get("taken") or {}, _TAKEN, "taken.")
    _check(change.get("lease") or {}, _LEASE, "lease.")
    for n, step in enumerate(change["steps"]):
        _check_step(step, f"steps[{n}].")
    return change


def read_all() -> tuple[list[Json], list[str]]:
    """Gives the changes, newest first, and the damaged files: each its path and what is wrong."""
    changes: list[Json] = []
    broken: list[str] = []
    try:
        names = os.listdir(files.journal_folder())
    except FileNotFoundError:
        return [], []
    for name in sorted(names):
        if name.startswith(files.TEMP_PREFIX):
            continue  # left by a kill before its rename: it never became part of the journal
        try:
            stem, suffix = os.path.splitext(name)
            if suffix != ".json":
                raise ValueError("not a journal file")
            with open(os.path.join(files.journal_folder(), name), "rb") as file:
                changes.append(parse(file.read(), stem))
        except FileNotFoundError:
            continue  # taken back meanwhile
        except (ValueError, OSError) as error:
            broken.append(_damaged(os.path.join(files.journal_folder(), name), error))
    changes.sort(key=_age, reverse=True)
    return changes, broken


def _age(change: Json) -> tuple[int, float, str]:
    """Gives what orders the changes: their number, since a clock may be set back."""
    return change["number"], change["opened_unix_s"], change["id"]


def find(change_id: str) -> Json | None:
    """Gives a change, or None. Raises NodeError when its file is damaged."""
    try:
        with open(path_of(change_id), "rb") as file:
            return parse(file.read(), change_id)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise broken_error([_damaged(path_of(change_id), error)]) from None


def get(change_id: str) -> Json:
    """Gives a change. Raises NodeError when there is none of that id."""
    change = find(change_id)
    if change is None:
        known = [row["id"] for row in read_all()[0][:5]]
        raise NodeError(
            f"no change {change_id}", "no_change", f"known: {', '.join(known) or 'none'}"
        )
    return change


def _damaged(path: str, error: Exception) -> str:
    return f"{path}: {getattr(error, 'strerror', None) or error}"


def broken_error(damaged: list[str]) -> NodeError:
    """Gives the error for journal files that cannot be read, or are damaged."""
    paths = shlex.join(row.partition(": ")[0] for row in damaged)
    return NodeError(
        f"the journal is damaged: {'; '.join(damaged)}",
        "journal_broken",
        "read it: it lists the change's steps; undo by hand what is not undone yet (former "
        f"contents by sha256: {files.blob_folder()}), then, as root: "
        f"mv -t {shlex.quote(files.state_root())} {paths}",
    )


def open_change(request: Json, others: list[Json]) -> Json:
    """Gives a new change, not yet written, of a checked request; `others`: those of the journal."""
    return {
        "format": FORMAT,
        "number": 1 + max((_age(row)[0] for row in others), default=0),
        "id": request["id"],
        "deploy": request["deploy"],
        "operator": request["operator"],
        "run": request["run"],
        "waivers": request["waivers"],
        "blob": request["blob"],
        "status": "OPEN",
        "opened_unix_s": time.time(),
        "closed_unix_s": None,
        "boot_id": proc.boot_id(),
        # whoever finds a kind or a format that it does not know hands over to this one
        "program": errors.own_path(),
        "reason": None,
        "steps": [],
    }


def save(change: Json) -> None:
    """Write a change; it is on the disk on return. When it was written tells work from a corpse."""
    change["saved_unix_s"] = time.time()
    # as it will be read: a number that is a key becomes text, and sorts as text
    body = json.loads(json.dumps(change, sort_keys=True))
    raw = json.dumps({"sha256": _sum(body), **body}, indent=1).encode("ascii") + b"\n"
    files.save_private(path_of(change["id"]), raw)


def last_sign(change: Json) -> float:
    """Gives when a change's run last said that it lives, in Unix seconds: its file's time, which
    a beat sets. A person at the console beats not, and only writes into the change.
    """
    if change.get("run") is None:
        return float(change["saved_unix_s"])
    return os.stat(path_of(change["id"])).st_mtime


def token(value: object, where: str) -> str | None:
    """Gives a run's token as it is compared, or None. Raises NodeError (`bad_request`)."""
    return None if value is None else validate.text(value, where, 40)


def require_owner(change: Json, run: str | None) -> None:
    """Raises NodeError (`taken_up`) when the change belongs to another run by now."""
    if change.get("run") == run:
        return
    by = change.get("taken") or change
    raise NodeError(
        f"change {change['id']} was taken up by {by['operator']} ({by['deploy']}) and is "
        f"{change['status']}: this run is over",
        "taken_up",
        "look with: rignode status",
    )


def discard(change_id: str) -> None:
    """Remove a change in which nothing was changed."""
    with files.Folder(path_of(change_id)) as folder:
        folder.unlink(folder.name)


def close(change: Json, status: str, reason: str | None) -> None:
    """Set a change's status and write it."""
    change.update(status=status, closed_unix_s=time.time(), reason=reason)
    save(change)


def sweep() -> None:
    """Remove temp files that a kill left in the state folders; call it under the lock."""
    for folder in (files.journal_folder(), files.blob_folder()):
        for name in os.listdir(folder):
            if name.startswith(files.TEMP_PREFIX):
                os.unlink(os.path.join(folder, name))


def summary(change: Json) -> Json:
    """Gives a change as the snapshot reports it."""
    return {
        **{key: change[key] for key in _KEYS},
        "saved_unix_s": change.get("saved_unix_s"),
        "run": change.get("run"),
        "taken_by": change.get("taken"),
        "lease": change.get("lease"),
        "beat_unix_s": _beat(change),
        "steps": [describe(step) for step in change["steps"]],
    }


def _beat(change: Json) -> float | None:
    """Gives when the run of an open change last said that it lives; None: it never does."""
    if change["status"] != "OPEN" or change.get("run") is None:
        return None
    try:
        return last_sign(change)
    except FileNotFoundError:
        return None  # taken out of the journal at this moment


def describe(step: Json) -> str:
    """Gives a step in words: what, where, and how far it came.

    The words are in the row where its kind wrote some: the snapshot tells the journal without them.
    """
    op, about = str(step.get("op", "step")), subject(step)
    what = step.get("words") or (op if about == op else f"{op} {about}")
    how = {INTENT: "announced, not known to be done",
           UNKNOWN: "what became of it is not known"}.get(step["state"], step["state"])  # fmt: skip
    return f"{what} ({how})"


def operator_at_work() -> bool:
    """Gives True while another run works here or left a change open."""
    held, _ = files.host_lock()
    return held or any(row["status"] == "OPEN" for row in read_all()[0])


def summary_section() -> Json:
    """Gives the journal and lock section of the snapshot: at most 20 changes, newest first.

    All that are not settled are among them, however many they are.
    """
    is_held, who = files.host_lock()
    changes, broken = read_all()
    settled = [row["id"] for row in changes if row["status"] not in UNSETTLED]
    dropped = set(settled[max(0, 20 - (len(changes) - len(settled))) :])
    return {
        "lock_held": is_held,
        "lock_holder": who,
        "changes": [summary(change) for change in changes if change["id"] not in dropped],
        "broken": broken,
    }


def parse_change(value: object) -> Json:
    """Gives the `change` of a request, every value checked, absent ones filled in."""
    allowed = ("id", "deploy", "operator", "run", "waivers", "blob")
    change = validate.keys(value, "change", allowed, ("id", "deploy", "operator"))
    waivers = []
    for n, row in enumerate(validate.array(change.get("waivers", []), "change.waivers")):
        where = f"change.waivers[{n}]"
        waiver = validate.keys(row, where, ("code", "reason"), ("code", "reason"))
        waivers.append({key: validate.text(waiver[key], f"{where}.{key}") for key in waiver})
    blob = change.get("blob")
    if len(json.dumps(blob)) > 1 << 20:
        raise validate.bad("change.blob is larger than 1 MiB")
    return {
        "id": validate.change_id(change["id"], "change.id"),
        "deploy": validate.text(change["deploy"], "change.deploy", 80),
        "operator": validate.text(change["operator"], "change.operator", 200),
        "run": token(change.get("run"), "change.run"),
        "waivers": waivers,
        "blob": blob,
    }
