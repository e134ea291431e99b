"""The host's journal: one JSON file a change, rewritten whole and flushed at each transition."""

from __future__ import annotations

import json
import os
import time

from node.core import proc, validate, version
from node.core.errors import Json, NodeError
from node.core.step_state import INTENT, UNKNOWN, subject
from node.files import atomic, host_lock, state_dir

FORMAT = 1
STATUSES = ("OPEN", "COMMITTED", "ROLLED_BACK", "INCONSISTENT")
UNSETTLED = ("OPEN", "INCONSISTENT")
_KEYS = ("id", "deploy", "operator", "status", "opened_unix_s", "closed_unix_s", "boot_id",
         "reason", "steps")  # fmt: skip


def path_of(change_id: str) -> str:
    """Gives the file of a change."""
    return os.path.join(state_dir.journal_folder(), change_id + ".json")


def parse(raw: bytes, change_id: str) -> Json:
    """Gives a change of its file's bytes. Raises ValueError when it is not one."""
    change = json.loads(raw.decode("utf-8"))
    if not isinstance(change, dict) or change.get("id") != change_id:
        raise ValueError("not the change that its name says")
    if any(key not in change for key in _KEYS) or change["status"] not in STATUSES:
        raise ValueError("not a change")
    if not all(isinstance(step, dict) and "state" in step for step in change["steps"]):
        raise ValueError("not a list of steps")
    return change


def read_all() -> tuple[list[Json], list[str]]:
    """Gives the changes, newest first, and the files that cannot be read as one."""
    changes: list[Json] = []
    broken: list[str] = []
    try:
        names = os.listdir(state_dir.journal_folder())
    except FileNotFoundError:
        return [], []
    for name in sorted(names):
        if name.startswith(atomic.TEMP_PREFIX):
            continue  # left by a kill before its rename: it never became part of the journal
        try:
            stem, suffix = os.path.splitext(name)
            if suffix != ".json":
                raise ValueError("not a journal file")
            with open(os.path.join(state_dir.journal_folder(), name), "rb") as file:
                changes.append(parse(file.read(), stem))
        except FileNotFoundError:
            continue  # taken back meanwhile
        except (ValueError, TypeError, OSError):
            broken.append(os.path.join(state_dir.journal_folder(), name))
    changes.sort(key=_age, reverse=True)
    return changes, broken


def _age(change: Json) -> tuple[int, float, str]:
    """Gives what orders the changes: their number, since a clock may be set back.

    One of an older version has none, and is older than those that have.
    """
    return int(change.get("number") or 0), change["opened_unix_s"], change["id"]


def find(change_id: str) -> Json | None:
    """Gives a change, or None. Raises NodeError when its file is damaged."""
    try:
        with open(path_of(change_id), "rb") as file:
            return parse(file.read(), change_id)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError):
        raise broken_error([path_of(change_id)]) from None


def get(change_id: str) -> Json:
    """Gives a change. Raises NodeError when there is none of that id."""
    change = find(change_id)
    if change is None:
        known = [row["id"] for row in read_all()[0][:5]]
        raise NodeError(
            f"no change {change_id}", "no_change", f"known: {', '.join(known) or 'none'}"
        )
    return change


def broken_error(paths: list[str]) -> NodeError:
    """Gives the error for journal files that cannot be read."""
    return NodeError(
        f"the journal is damaged: {', '.join(paths)}",
        "journal_broken",
        "look at the file, then move it out of the journal",
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
        "program": version.own_path(),
        "reason": None,
        "steps": [],
    }


def save(change: Json) -> None:
    """Write a change; it is on the disk on return. When it was written tells work from a corpse."""
    change["saved_unix_s"] = time.time()
    raw = json.dumps(change, indent=1, sort_keys=True).encode("utf-8") + b"\n"
    atomic.save_private(path_of(change["id"]), raw)


def last_sign(change: Json) -> float:
    """Gives when a change's run last said that it lives, in Unix seconds: its file's time, which
    a beat sets. A run of an older version only wrote into the change.
    """
    if change.get("run") is None:
        return float(change.get("saved_unix_s") or change["opened_unix_s"])
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
    with atomic.Folder(path_of(change_id)) as folder:
        folder.unlink(folder.name)


def close(change: Json, status: str, reason: str | None) -> None:
    """Set a change's status and write it."""
    change.update(status=status, closed_unix_s=time.time(), reason=reason)
    save(change)


def sweep() -> None:
    """Remove temp files that a kill left in the state folders; call it under the lock."""
    for folder in (state_dir.journal_folder(), state_dir.blob_folder()):
        for name in os.listdir(folder):
            if name.startswith(atomic.TEMP_PREFIX):
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
    held, _ = host_lock.held()
    return held or any(row["status"] == "OPEN" for row in read_all()[0])


def summary_section() -> Json:
    """Gives the journal and lock section of the snapshot: at most 20 changes, newest first.

    All that are not settled are among them, however many they are.
    """
    is_held, who = host_lock.held()
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
