"""lease keep: the keeper of an open change, as long as it is open (rigbook-lease.service).

It measures the silence of the run by CLOCK_BOOTTIME and CLOCK_MONOTONIC: a clock that is set says
nothing, and after a host's own sleep a run has two more beats to be heard. After a reboot the lease
begins anew, unless this host had promised.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

from node.core import log
from node.core.errors import Json, NodeError, io_reason
from node.files import host_lock
from node.lease import arm, message, settings
from node.lease.agreement import (
    BACK,
    COMMIT,
    EXPIRED,
    LEAVE,
    PROMISE,
    PROVE,
    RENEWED,
    SETTLED,
    STOP,
    STOPPED,
    UNDO,
    View,
    next_step,
)
from node.lease.settings import Lease
from node.lease.way_back import Sign, WayBack
from node.rules.heartbeat import BEAT_S

POLL_S = 2.0
LOOK_S = 30.0
# a host whose peer no longer listens has told it all, or the peer boots
REFUSED_S = 60.0
# a peer that says nothing for so long learns of the end from the operator
SILENT_S = 3600.0


class Silence:
    """How long the run has not been heard: over after `seconds` of the boot's time, suspend
    included, of which this process has seen at least two beats.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.heard()

    def heard(self) -> None:
        """Begins anew."""
        self._boot, self._awake = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()

    def over(self) -> bool:
        """Gives True once the lease has run out."""
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - self._boot
        awake = time.monotonic() - self._awake
        return since >= self.seconds and awake >= min(2 * BEAT_S, self.seconds)


class Keeper:
    """The keeper of one change on this host. `view` is what it tells the others."""

    def __init__(self, lease: Lease, silence: Silence) -> None:
        self.lease = lease
        self.way = WayBack(lease)
        self.silence = silence
        self.view = View(RENEWED, None, lease.head)
        self._sign: Sign | None = None
        self._told = ""
        self._looked: tuple[float, str] | None = None
        # when a peer last said something, and since when it has only refused (monotonic seconds)
        self._heard = dict.fromkeys(lease.peers, time.monotonic())
        self._refuses: dict[str, float] = {}

    def look(self) -> None:
        """Sees how far this host is."""
        change = self.way.change()
        sign = self.way.sign(change)
        # a command of the run that still works is ended by its own limit
        if sign != self._sign or host_lock.held()[0]:
            self._sign = sign
            self._looked = None
            self.silence.heard()
        phase = self.way.phase(change, self.silence.over())
        hindrance = self._hindrance(change) if change and phase == EXPIRED else ""
        status = change["status"] if change else None
        engine = change is not None and self.way.touches_engine(change)
        self.view = View(phase, status, self.lease.head, hindrance, engine)

    def _hindrance(self, change: Json) -> str:
        """Gives why this host could not go back, looked at every LOOK_S seconds: a look at trees or
        weights reads a lot.
        """
        now = time.monotonic()
        if self._looked is None or now - self._looked[0] >= LOOK_S:
            self._looked = now, self.way.hindrance(change)
        return self._looked[1]

    def ask_all(self) -> dict[str, View | None]:
        """Gives what each peer says now, by any of its addresses."""
        return {name: self._ask(name, rows) for name, rows in self.lease.peers.items()}

    def _ask(self, name: str, addresses: tuple[str, ...]) -> View | None:
        lease, refused = self.lease, False
        for address in addresses:
            try:
                found = message.ask(address, lease.port, lease.key, lease.change, name)
            except ConnectionRefusedError:
                refused = True
                continue
            except OSError:
                continue
            if found is not None:
                self._heard[name] = time.monotonic()
                self._refuses.pop(name, None)
                return found
        if refused:
            self._refuses.setdefault(name, time.monotonic())
        else:
            self._refuses.pop(name, None)
        return None

    def _gone(self, name: str) -> bool:
        """Gives True for a peer whose keeper has ended, or that nobody can wait for."""
        now = time.monotonic()
        refused = now - self._refuses.get(name, now) >= REFUSED_S
        return refused or now - self._heard[name] >= SILENT_S

    def step(self) -> bool:
        """One look, and what follows from it; False once there is nothing left to keep."""
        self.look()
        if self.view.phase == RENEWED:
            return True
        peers = self.ask_all()
        if self.view.phase == SETTLED:
            peers = {name: view for name, view in peers.items() if view or not self._gone(name)}
        action, why = next_step(self.view, peers)
        if action == LEAVE:
            arm.remove(self.lease)
            return False
        if self.view.phase in (STOPPED, BACK):
            self.way.beat()
        acts: dict[str, Callable[[], None]] = {
            PROMISE: lambda: self.way.promise(self._sign or ()),
            STOP: lambda: self.way.stop(why),
            UNDO: self.way.undo,
            PROVE: lambda: self.way.prove(why),
            COMMIT: lambda: self.way.commit(why),
        }
        if action in acts:
            self._say(f"{action}: {self.lease.change}")
            acts[action]()
            self.look()
        elif self.view.phase != SETTLED:
            self._say(f"change {self.lease.change}: nobody renews it; waits: {why}", log.WARNING)
        return True

    def guarded_step(self) -> bool:
        """The same; a failure is told and tried again at the next look."""
        try:
            return self.step()
        except NodeError as error:
            self._say(f"change {self.lease.change}: {error}", log.ERROR)
        except OSError as error:
            self._say(f"change {self.lease.change}: {io_reason(error)}", log.ERROR)
        return True

    def _say(self, line: str, level: int = log.NOTICE) -> None:
        """A line once, not at every look."""
        if line != self._told:
            self._told = line
            log.say(line, level)


def _answer_for_ever(keeper: Keeper) -> None:
    """Answers the peers' questions, in threads of their own: an undo may take its time."""
    lease = keeper.lease

    def serve(sock: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                message.answer(sock, lease.key, lease.change, lease.node, keeper.view)

    for address in lease.addresses:
        sock = message.listening(address, lease.port)
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def _ready() -> None:
    """Tells systemd that this host listens for its peers (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)


def run() -> None:
    """The verb: keeps this host's lease until its change is settled on every host that is heard.

    Raises NodeError, OSError for a lease that cannot be kept; systemd tries again.
    """
    lease = settings.load()
    if lease is None:
        log.say("lease: no change is open here")
        return
    keeper = Keeper(lease, Silence(lease.seconds))
    keeper.look()
    _answer_for_ever(keeper)
    _ready()
    log.say(f"change {lease.change}: kept, lease {lease.seconds:.0f} s")
    while keeper.guarded_step():
        time.sleep(POLL_S)
    log.say(f"change {lease.change} is {keeper.view.status or 'gone'}: nothing left to keep")
