"""The rule: of each kind the newest stay, and what somebody needs; the rest goes after a commit.

`prune` applies it when a person says so, `growth` tells what there is.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from node.backup import store
from node.change import close as closing
from node.change import kinds
from node.core import signals, validate
from node.core.errors import CannotRead, Json, NodeError
from node.files import evidence_folder, state_dir
from node.files.host_lock import Lock
from node.growth import changes, evidence, images, programs, trees
from node.growth.item import Item


class Kept(NamedTuple):
    """A kind of what is kept: how many of the newest stay, and what there is, newest first."""

    keep: int
    look: Callable[[], list[Item]]


# in this order: a change stays while what it displaced is there, a blob while a change names it
KEPT: dict[str, Kept] = {
    "displaced": Kept(1, trees.displaced),
    "changes": Kept(200, changes.changes),
    "blobs": Kept(0, changes.blobs),
    "programs": Kept(3, programs.versions),
    "backups": Kept(5, trees.backups),
    "copies": Kept(3, trees.copies),
    "images": Kept(2, images.images),
    "evidence": Kept(evidence_folder.KEEP, evidence.bundles),
}
_TOLD = ("changes", "blobs", "programs", "displaced", "backups", "copies", "images", "evidence")
# how long a close may take over it; the rest goes with the next one
MOST_S = 60.0
_ERRORS = (NodeError, CannotRead, OSError)


def _surplus(items: list[Item], keep: int) -> Iterator[Item]:
    """Gives what goes: beyond the `keep` newest of its group that may go at all. Pure."""
    seen: Counter[str] = Counter()
    for item in items:
        seen[item.group] += 1
        if not item.needed and (item.over or seen[item.group] > keep):
            yield item


def _apply(
    wanted: Collection[str], keep: int | None, dry: bool, most_s: float | None = None
) -> Json:
    """Remove what goes of these kinds; what could not be removed is told, the rest goes on.

    Raises NodeError when the journal is damaged: nobody knows then what is needed.
    """
    changes.known()
    removed: list[Json] = []
    problems: list[str] = []
    deadline = None if most_s is None else time.monotonic() + most_s
    for what in (one for one in KEPT if one in wanted):
        try:
            items = KEPT[what].look()
        except _ERRORS as error:
            problems.append(f"{what}: {kinds.reason(error)}")
            continue
        for item in _surplus(items, KEPT[what].keep if keep is None else keep):
            if signals.interrupted() or (deadline and time.monotonic() > deadline):
                problems.append(f"{what}: {item.name} and what follows goes with the next one")
                break
            try:
                if not dry:
                    item.remove()
                removed.append({"what": what, "name": item.name, "bytes": item.bytes})
            except _ERRORS as error:
                problems.append(f"{what}: {kinds.reason(error)}")
        if what == "changes" and removed and not dry:
            # once for all: their blobs must not be gone before they are
            state_dir.sync_folder(state_dir.journal_folder())
    return {"removed": removed, "not_freed": problems,
            "freed_bytes": sum(row["bytes"] for row in removed)}  # fmt: skip


def prune(request: Json) -> Json:
    """`prune`: apply the rule now, to one kind or all; `keep` in place of the rule's own number.

    Raises NodeError when the journal is damaged.
    """
    body = validate.keys(request, "request", ("what", "keep", "dry"))
    what = validate.choice(body.get("what"), "what", (None, *KEPT))
    keep = body.get("keep")
    keep = None if keep is None else int(validate.number(keep, "keep", 0, 10**6))
    dry = validate.boolean(body.get("dry", False), "dry")
    wanted = list(KEPT) if what is None else [what]
    with contextlib.ExitStack() as stack:
        if not dry:
            stack.enter_context(store.Held())
            stack.enter_context(Lock("prune"))
        return {**_apply(wanted, keep, dry), "dry": dry}


def close(request: Json) -> Json:
    """`close`: as node.change.close; a change that becomes COMMITTED is when the rule is applied.

    What it could not free is told and is no failure of the close.
    """
    answer = closing.close(request)
    change = answer["change"]
    if change["status"] != "COMMITTED" or not answer["changed"]:
        return answer
    wanted = set(KEPT)
    if change["deploy"] != "upgrade":
        wanted.remove("backups")  # each upgrade makes one; of the others a person made them
    if all(row["op"] != "tag" for row in change["steps"]):
        wanted.remove("images")  # docker need not be asked
    try:
        # whoever works on them now is not waited for: the next close comes
        with store.Held(wait_s=0), Lock("prune", 0):
            done = _apply(wanted, None, False, MOST_S)
    except _ERRORS as error:
        done = {"removed": [], "not_freed": [kinds.reason(error)]}
    return {**answer, "freed": _lines(done["removed"]), "not_freed": done["not_freed"]}


def _lines(removed: list[Json]) -> list[str]:
    """Gives what went, a line a kind."""
    lines: list[str] = []
    for what, kept in KEPT.items():
        sizes = [row["bytes"] for row in removed if row["what"] == what]
        if sizes:
            beyond = f"beyond the {kept.keep} newest" if kept.keep else "that nothing names"
            lines.append(f"removed {len(sizes)} {what} {beyond}, {sum(sizes) / (1 << 20):.1f} MiB")
    return lines


def growth(request: Json) -> Json:
    """`growth`: how many of each kind there are, and their bytes; reads only."""
    validate.keys(request, "request", ())
    rows: list[Json] = []
    for what in _TOLD:
        row: Json = {"what": what, "count": 0, "bytes": 0, "unreadable": None}
        try:
            items = KEPT[what].look()
            row.update(count=len(items), bytes=sum(item.bytes for item in items))
        except _ERRORS as error:
            row["unreadable"] = kinds.reason(error)
        rows.append(row)
    return {"rows": rows}
