"""What a host does next about a change whose lease ran out: pure, of its own state and its peers'.

Two phases: a host promises only when every lease of the rig has run out, and goes back only when
every host has promised. A promise is on the disk, and the former run's writes are refused from then
on. So no host goes back while a run still works on another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# in this order; `back` is undone here and still open, `settled` is looked at as well, or ended by
# somebody else
PHASES = ("renewed", "expired", "promised", "stopped", "back", "settled")
RENEWED, EXPIRED, PROMISED, STOPPED, BACK, SETTLED = PHASES
# what to do next
WAIT, PROMISE, STOP, UNDO, PROVE, COMMIT, LEAVE = (
    "wait", "promise", "stop", "undo", "prove", "commit", "leave",
)  # fmt: skip


class View(NamedTuple):
    """What a host says of a change: how far it is, and the change's status in its journal (None:
    it has none of it). `hindrance`: why it cannot go back now. `engine`: the change stopped or
    started its engine.
    """

    phase: str
    status: str | None
    head: bool
    hindrance: str = ""
    engine: bool = False

    def is_at_least(self, phase: str) -> bool:
        """Gives True for one that is in this phase or in a later one."""
        return PHASES.index(self.phase) >= PHASES.index(phase)


Peers = Mapping[str, View | None]


def _short_of(peers: Peers, phase: str) -> str:
    """Gives which peers are not known to be that far, in words; "" when all are."""
    found = [
        f"no answer from {name}" if view is None else f"{name}: {view.hindrance or view.phase}"
        for name, view in sorted(peers.items())
        if view is None or not view.is_at_least(phase) or (view.hindrance and phase == EXPIRED)
    ]
    return ", ".join(found)


def _proof(me: View, peers: Peers) -> tuple[str, str]:
    """Gives the step of a host that is back: the head asks its engine, the others wait for it."""
    if me.head:
        return PROVE, ""
    head = {name: view for name, view in peers.items() if view and view.head}
    missing = _short_of(head, SETTLED) if head else "no answer from the head"
    if missing:
        return WAIT, missing
    return PROVE, next(view.status or "" for view in head.values() if view)


def next_step(me: View, peers: Peers) -> tuple[str, str]:
    """Gives what to do next, and why it waits: for `prove` the head's status, on another host; for
    `stop` a peer whose engine the change touched, or "".

    `peers`: what each said just now, None: nothing.
    """
    if me.phase == SETTLED:
        missing = _short_of(peers, SETTLED)
        return (WAIT, missing) if missing else (LEAVE, "")
    if me.phase == RENEWED:
        return WAIT, ""
    if me.phase == BACK:
        return _proof(me, peers)
    if me.phase == STOPPED:
        # the head's engine ends before its workers', and starts after theirs
        others = {name: view for name, view in peers.items() if me.head or not view or view.head}
        missing = _short_of(others, BACK if me.head else STOPPED)
        return (WAIT, missing) if missing else (UNDO, "")
    statuses = {name: view.status for name, view in peers.items() if view}
    proven = [name for name, status in sorted(statuses.items()) if status == "COMMITTED"]
    if proven:
        undone = [name for name, status in sorted(statuses.items()) if status == "ROLLED_BACK"]
        if undone:
            return WAIT, f"{proven[0]} is COMMITTED and {undone[0]} is ROLLED_BACK"
        return COMMIT, proven[0]
    wanted = EXPIRED if me.phase == EXPIRED else PROMISED
    missing = _short_of(peers, wanted)
    if me.hindrance and me.phase == EXPIRED:
        missing = ", ".join(filter(None, (me.hindrance, missing)))
    if missing:
        return WAIT, missing
    if me.phase == EXPIRED:
        return PROMISE, ""
    return STOP, next((name for name, view in sorted(peers.items()) if view and view.engine), "")
