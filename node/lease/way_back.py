"""What a keeper does to its host: promise, stop, undo, look at the answer, close.

It has the change by a token of its own, as a run has: what the former run writes is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time

from node.change import close, journal, kinds, undo
from node.core import log, proc, systemctl
from node.core.errors import CannotRead, Json, NodeError
from node.core.step_state import UNDONE
from node.engine import await_answer, config
from node.engine.api_key import key_of
from node.engine.held_stopped import EngineHold
from node.files import ballast
from node.files.host_lock import Lock
from node.kernel import candidate
from node.lease.agreement import BACK, EXPIRED, PROMISED, RENEWED, SETTLED, STOPPED
from node.lease.settings import Lease
from node.rules.heartbeat import KEEPER

LOCK_S = 5.0
POLL_S = 2.0
# beyond the engine's own start budget: its stop, the wait for memory and for the peers
MARGIN_S = 120.0
Sign = tuple[object, ...]
WHY = "nobody renewed the lease of {seconds:.0f} s"


def _keeper() -> Json:
    """Gives who has a change that its keeper takes."""
    host = socket.gethostname()
    return {"operator": f"keeper@{host}", "deploy": KEEPER, "unix_s": time.time()}


def _boots(change: Json) -> bool:
    """Boots where a part of the way back waits for that, once; gives whether it does. The change is
    OPEN and stopped: after the boot this undo goes on.
    """
    now = proc.boot_id()
    if not any(row.get("boot") == now for row in change["steps"]):
        return False
    log.say(f"change {change['id']}: boots once, to undo the rest", log.WARNING)
    systemctl.systemctl("--no-block", "reboot")
    return True


class WayBack:
    """One change on this host, as its keeper sees and ends it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        # the same after a reboot, and no other host's
        told = hashlib.sha256(lease.key + lease.node.encode("utf-8")).hexdigest()
        self.token = f"keeper-{told[:24]}"

    def change(self) -> Json | None:
        """Gives the change as the journal has it; None: it was given up before its first step."""
        return journal.find(self.lease.change)

    def phase(self, change: Json | None, over: bool) -> str:
        """Gives how far this host is; `over` says that the lease of an open change has run out."""
        if change is None:
            return SETTLED
        noted = (change.get("lease") or {}).get("phase")
        mine = change.get("run") == self.token
        if change["status"] == "OPEN":
            if mine and noted in (PROMISED, STOPPED, BACK):
                return str(noted)
            return EXPIRED if over else RENEWED
        # what could not be put back is INCONSISTENT at once
        return BACK if mine and noted == STOPPED else SETTLED

    def sign(self, change: Json | None) -> Sign:
        """Gives what differs after a sign of life: who has the change, and its file's time."""
        if change is None:
            return ()
        try:
            return change.get("run"), os.stat(journal.path_of(self.lease.change)).st_mtime_ns
        except FileNotFoundError:
            return ()

    def hindrance(self, change: Json) -> str:
        """Gives why this host could not go back now; "" when nothing is in the way. Reads only."""
        try:
            if trial := candidate.under_trial():
                return f"kernel {trial} is tried; unblessed, it falls back to the pinned one"
            kinds.require_known(change)
            undo.refuse_lasting(change)
            rows = [row for row in reversed(change["steps"])
                    if row["state"] != UNDONE and not kinds.of(row).irreversible]  # fmt: skip
            edited = undo.conflicts(rows, [])
        except NodeError as error:
            return str(error)
        return f"edited after the change: {', '.join(edited)}" if edited else ""

    def promise(self, sign: Sign) -> None:
        """Take the change from its run, which gave no `sign` since that one; it is on the disk on
        return. Does nothing when the run was heard meanwhile.
        """
        with Lock("lease", LOCK_S), ballast.Room(1):
            change = journal.get(self.lease.change)
            if change["status"] != "OPEN" or self.sign(change) != sign:
                return
            change["run"] = self.token
            change["taken"] = _keeper()
            self._note(change, PROMISED)

    def touches_engine(self, change: Json) -> bool:
        """Gives whether a step of the change stopped or started this host's engine."""
        unit = self._engine_unit()
        return unit is not None and any(
            row["op"] == "unit" and row.get("active") and row["unit"] == unit
            for row in change["steps"]
        )

    def stop(self, peer: str = "") -> None:
        """Stop the engine that the change started or stopped. Raises NodeError.

        One that the change did not reach is stopped as well where it touched that of `peer`: a rank
        whose peer ended joins no new one. It is started after the undo.
        """
        with Lock("lease", LOCK_S), ballast.Room(1):
            change = journal.get(self.lease.change)
            journal.require_owner(change, self.token)
            unit = self._engine_unit()
            if unit is not None and self.touches_engine(change):
                systemctl.systemctl("stop", unit)
            elif unit is not None and peer and self._runs(unit):
                # on the disk first: after a kill nothing else tells that it ran
                self._note(change, PROMISED, again=True)
                systemctl.systemctl("stop", unit)
            self._note(change, STOPPED)

    def undo(self) -> None:
        """Put back what the change found, and start what ran; it stays OPEN. Raises NodeError, and
        the change is INCONSISTENT then, where a part could not be put back.
        """
        with Lock("lease"), ballast.Room():
            change = journal.get(self.lease.change)
            journal.require_owner(change, self.token)
            try:
                undo.take_back(change, [], [], EngineHold())
            except NodeError as error:
                if error.code == "undo_incomplete" and _boots(change):
                    return
                if error.code == "undo_incomplete":
                    journal.close(change, "INCONSISTENT", f"{self._why()}; {error}"[:2000])
                raise
            unit = self._engine_unit()
            if unit is not None and change["lease"].get("again"):
                systemctl.forget_failures(unit)
                systemctl.systemctl("start", "--no-block", unit)
            self._note(change, BACK)

    def beat(self) -> None:
        """Says that this keeper works, as a run says it."""
        with contextlib.suppress(OSError):
            os.utime(journal.path_of(self.lease.change))

    def prove(self, head: str = "") -> None:
        """Close the change: ROLLED_BACK once the former engine was seen to answer, by this host or
        by the head, whose status that is; else INCONSISTENT. Raises NodeError.
        """
        change = journal.get(self.lease.change)
        if change["status"] == "OPEN":
            self._close(change, head)
        with Lock("lease", LOCK_S), ballast.Room(1):
            change = journal.get(self.lease.change)
            self._note(change, SETTLED)
        level = log.NOTICE if change["status"] == "ROLLED_BACK" else log.ERROR
        log.say(f"change {change['id']} is {change['status']}: {change['reason']}", level)

    def _close(self, change: Json, head: str) -> None:
        reason = "; ".join([self._why(), *undo.left(change)])
        body = {"change": self.lease.change, "run": self.token}
        try:
            if head in ("INCONSISTENT", "COMMITTED"):
                raise NodeError(f"the head has it {head}", "no_answer")
            told = f"{reason}; {self._answer(head)}"[:2000]
            close.close({**body, "status": "ROLLED_BACK", "reason": told})
        except NodeError as error:
            if error.code not in ("no_answer", "unfinished"):
                raise
            told = f"{reason}; {error}"[:2000]
            close.close({**body, "status": "INCONSISTENT", "reason": told})

    def commit(self, peer: str) -> None:
        """Close the change COMMITTED, which `peer` says it is. Raises NodeError where steps lack.

        A run closes a change so only after the proof of the whole rig.
        """
        reason = f"{self._why()}; it was proven: {peer} has it COMMITTED"
        with Lock("lease", LOCK_S), ballast.Room(1):
            change = journal.get(self.lease.change)
            # so that the next command tells who closed it; once: each save is a sign of life
            if (change.get("taken") or {}).get("deploy") != KEEPER:
                journal.save({**change, "taken": _keeper()})
        request = {"change": self.lease.change, "status": "COMMITTED", "reason": reason}
        close.close(request)
        log.say(f"change {self.lease.change} is COMMITTED: {reason}", log.NOTICE)

    def _why(self) -> str:
        return WHY.format(seconds=self.lease.seconds)

    def _note(self, change: Json, phase: str, **more: bool) -> None:
        change["lease"] = {**(change.get("lease") or {}), "phase": phase, **more}
        journal.save(change)

    def _runs(self, unit: str) -> bool:
        return systemctl.inspect_unit(unit)["active"] not in systemctl.DOWN

    def _engine_unit(self) -> str | None:
        try:
            return config.load().unit
        except NodeError:
            return None  # no engine of ours was ever here

    def _answer(self, head: str) -> str:
        """Gives a line about the former engine. Raises NodeError when it does not answer."""
        try:
            engine = config.load()
        except NodeError:
            return "no engine of rigbook's ran before"
        if systemctl.inspect_unit(engine.unit)["active"] in systemctl.DOWN:
            return f"{engine.unit} is down, as the change found it"
        if engine.endpoint is None:
            seen = "the head saw it answer" if head else "nothing was changed on the head"
            return f"{engine.unit} was started; {seen}"
        deadline = time.monotonic() + engine.start_budget_s + MARGIN_S
        while True:
            state, said = systemctl.inspect_unit(engine.unit)["active"], "it has not started"
            if state in systemctl.RUNNING:
                reply = await_answer.ask_ours(engine, engine.endpoint, 60.0, self._key(engine))
                if reply.ok:
                    return f"the former engine answers: {reply.detail}"
                said = reply.detail
            self.beat()
            if state in systemctl.DOWN or time.monotonic() > deadline:
                raise NodeError(f"the former engine does not answer ({engine.unit} is {state}): "
                                f"{said}", "no_answer")  # fmt: skip
            time.sleep(POLL_S)

    def _key(self, engine: config.Engine) -> str | None:
        try:
            return key_of(engine)
        except (CannotRead, OSError):
            return None
