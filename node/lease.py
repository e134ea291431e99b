"""Back to the former state when the operator is gone: agreement, timer, way back."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from node.change import journal, kinds, transaction
from node.change.journal import UNDONE
from node.core import errors, files, proc, systemctl, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.files import Lock
from node.engine import answer, config
from node.engine.answer import key_of
from node.engine.start import EngineHold
from node.kernel import grub_step
from node.rules.engine import BEAT_S, KEEPER, LEAST_LEASE_S

# The dead-man's switch: a host goes back by itself when nobody renews an open change.

# What a host does next about a change whose lease ran out: pure, of its own state and its peers'.
#
# Two phases: a host promises only when every lease of the rig has run out, and goes back only when
# every host has promised. A promise is on the disk, and the former run's writes are refused from
# then
# on. So no host goes back while a run still works on another one.

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


# What the hosts of a rig say to each other: one UDP datagram each, with a code made with the key.
#
# A question has a nonce that the answer repeats, so an old answer that comes late, twice or from a
# stranger says nothing.

MOST = 2048
ANSWER_S = 0.5
# ip(7): bind an address that comes up later, such as the fabric's at boot
IP_FREEBIND = 15


def _pack(key: bytes, body: Json) -> bytes:
    raw = json.dumps(body, sort_keys=True).encode("utf-8")
    return hmac.new(key, raw, hashlib.sha256).hexdigest().encode("ascii") + raw


def _unpack(key: bytes, raw: bytes) -> Json | None:
    """Gives the object of a datagram; None for one that was not made with the key."""
    code, text = raw[:64], raw[64:]
    made = hmac.new(key, text, hashlib.sha256).hexdigest().encode("ascii")
    if not hmac.compare_digest(made, code):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def listening_socket(address: str, port: int) -> socket.socket:
    """Gives a socket that takes questions at an address, which need not be up yet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


def answer_peer(sock: socket.socket, key: bytes, change: str, node: str, view: View) -> None:
    """Takes one datagram, and answers it when it asks this host about this change."""
    raw, sender = sock.recvfrom(MOST)
    asked = _unpack(key, raw)
    if asked is None or asked.get("ask") != change or asked.get("of") != node:
        return
    said = {"tell": change, "nonce": asked.get("nonce"), "from": node, **view._asdict()}
    sock.sendto(_pack(key, said), sender)


def ask_peer(address: str, port: int, key: bytes, change: str, node: str) -> View | None:
    """Gives what the host `node` says at an address; None: nothing within ANSWER_S seconds.

    Raises ConnectionRefusedError where it says that nobody listens, OSError where no way leads.
    """
    nonce = secrets.token_hex(8)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(ANSWER_S)
        sock.connect((address, port))
        sock.send(_pack(key, {"ask": change, "of": node, "nonce": nonce}))
        # late answers to earlier questions go to closed ports; one that is no answer ends it
        try:
            told = _unpack(key, sock.recv(MOST))
        except TimeoutError:
            return None
    if told is None or (told.get("tell"), told.get("nonce"), told.get("from")) != (
        change,
        nonce,
        node,
    ):
        return None
    return _view(told)


def _view(told: dict[str, Any]) -> View | None:
    if told.get("phase") not in PHASES:
        return None
    status, hindrance = told.get("status"), str(told.get("hindrance") or "")
    known = status if isinstance(status, str) else None
    head, engine = told.get("head") is True, told.get("engine") is True
    return View(told["phase"], known, head, hindrance, engine)


# The lease of the open change on this host: root's file, written by the run, gone at its end.

_KEYS = ("seconds", "key", "node", "head", "port", "addresses", "peers")


class Lease(NamedTuple):
    """A change's lease in seconds, the key of its rig's keepers, this host's name and addresses,
    whether it is the head, and the addresses of each peer by name.
    """

    change: str
    seconds: float
    key: bytes
    node: str
    head: bool
    port: int
    addresses: tuple[str, ...]
    peers: dict[str, tuple[str, ...]]


def path() -> str:
    """Gives the file's path."""
    return os.path.join(files.state_root(), "lease.json")


def parse_lease(value: Any) -> Lease:
    """Gives the lease of a request's or the file's object. Raises NodeError (`bad_request`)."""
    row = validate.keys(value, "lease", ("change", *_KEYS), ("change", *_KEYS))
    peers = row["peers"]
    if not isinstance(peers, dict) or len(peers) > 63:
        raise validate.bad("lease.peers is not an object of at most 63 peers")
    return Lease(
        validate.change_id(row["change"], "lease.change"),
        validate.number(row["seconds"], "lease.seconds", LEAST_LEASE_S, 86400),
        bytes.fromhex(validate.key(row["key"], "lease.key")),
        validate.text(row["node"], "lease.node", 200),
        validate.boolean(row["head"], "lease.head"),
        int(validate.number(row["port"], "lease.port", 1024, 65535)),
        _addresses(row["addresses"], "lease.addresses"),
        {validate.text(name, "lease.peers", 200): _addresses(rows, f"lease.peers.{name}")
         for name, rows in peers.items()},
    )  # fmt: skip


def _addresses(value: Any, where: str) -> tuple[str, ...]:
    rows = validate.array(value, where, 8)
    if not rows:
        raise validate.bad(f"{where} is empty")
    return tuple(validate.address(row, f"{where}[{n}]") for n, row in enumerate(rows))


def load_lease() -> Lease | None:
    """Gives this host's lease; None: there is none. Raises NodeError (`lease_file`)."""
    if not os.path.exists(path()):
        return None
    return files.read_settings(path(), parse_lease, "lease_file", "rignode status")


def save_lease(body: Json) -> None:
    """Write the lease of a checked request; it is on the disk on return, for root alone."""
    files.save_state(path(), body)


def remove_lease_file() -> None:
    """Take the file away, where there is one."""
    with files.Folder(path()) as folder:
        if os.path.lexists(path()):
            folder.unlink(folder.name)


# lease: a change is opened with a lease, and a keeper watches over it from then on.
#
# The keeper's unit is there as long as the change is open: the keeper takes it away itself. It is
# enabled, so that it survives a reboot.

LEASE_UNIT = "rigbook-lease.service"
LOCK_S = 5.0
_TEXT = """\
# Made by rigbook while a change is open; its keeper takes it away at the end.
[Unit]
Description=rigbook: goes back when nobody renews change {change}
After=network.target
# A keeper that fails is the only one who would bring this host back.
StartLimitIntervalSec=0

[Service]
# Started means: it listens for the peers. One that cannot fails the arming.
Type=notify
TimeoutStartSec=20
SyslogIdentifier=rigbook-lease
ExecStart={program} lease keep
Restart=on-failure
RestartSec=2
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""


def unit_folder() -> str:
    """Gives the folder of the unit; below RIGBOOK_STATE where that is set (tests)."""
    root = os.environ.get("RIGBOOK_STATE")
    return os.path.join(root, "units") if root else "/etc/systemd/system"


def _paths() -> tuple[str, str]:
    """Gives the unit's file, and the link that has it started at boot."""
    folder = unit_folder()
    wants = os.path.join(folder, "multi-user.target.wants")
    return os.path.join(folder, LEASE_UNIT), os.path.join(wants, LEASE_UNIT)


def arm(request: Json) -> Json:
    """Open the change, or go on in it, and have its keeper started; an OPEN change with a lease of
    before gets the new one. Raises NodeError.
    """
    body = validate.keys(request, "request", ("change", "lease"), ("change", "lease"))
    header = journal.parse_change(body["change"])
    if not isinstance(body["lease"], dict):
        raise validate.bad("lease is not an object")
    wanted = {**body["lease"], "change": header["id"]}
    lease = parse_lease(wanted)
    program = errors.own_path()
    if program is None:
        raise NodeError("the program is not installed: no unit could start it", "not_installed")
    with transaction.opened(header, "lease") as steps:
        steps.change["lease"] = {"seconds": lease.seconds}
        steps.announce()
        save_lease(wanted)
        unit, link = _paths()
        os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
        text = _TEXT.format(change=lease.change, program=program)
        _write(unit, text)
        if not os.path.islink(link):
            os.symlink(unit, link)
        files.sync_folder(os.path.dirname(link))
        systemctl.systemctl("daemon-reload")
        # one that keeps a former change takes up this one
        try:
            systemctl.systemctl("restart", LEASE_UNIT)
        except NodeError as error:
            _take_away()
            del steps.change["lease"]
            steps.forget([])
            begun = f"change {lease.change} has none now" if steps.rows else "nothing was begun"
            raise NodeError(
                f"no lease: its keeper does not start: {error}; {begun}",
                "lease_failed",
                f"journalctl -u {LEASE_UNIT} -n 20; ss -lunp 'sport = :{lease.port}'",
            ) from None
    return {**steps.answer(), "changed": True}


def _write(path: str, text: str) -> None:
    with files.Folder(path) as folder:
        owner = files.Owner(0o644, os.geteuid(), os.getegid())
        files.replace(folder, text.encode("utf-8"), owner, files.temp_name(folder.name))


def _take_away() -> None:
    """Take the unit, its link and the lease away, and end a keeper that still tries."""
    for path in reversed(_paths()):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    remove_lease_file()
    with contextlib.suppress(NodeError):
        systemctl.systemctl("stop", "--no-block", LEASE_UNIT)
    systemctl.systemctl("daemon-reload")


def disarm(lease: Lease) -> None:
    """Take the unit and the lease away, unless another one is there by now.

    Raises NodeError, OSError.
    """
    with Lock("lease", LOCK_S):
        now = load_lease()
        if now is not None and now != lease:
            return
        for path in reversed(_paths()):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        remove_lease_file()
        systemctl.systemctl("daemon-reload")


# What a keeper does to its host: promise, stop, undo, look at the answer, close.
#
# It has the change by a token of its own, as a run has: what the former run writes is refused.

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
    errors.log(f"change {change['id']}: boots once, to undo the rest", errors.WARNING)
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
            if trial := grub_step.under_trial():
                return f"kernel {trial} is tried; unblessed, it falls back to the pinned one"
            kinds.require_known(change)
            transaction.refuse_lasting(change)
            rows = [row for row in reversed(change["steps"])
                    if row["state"] != UNDONE and not kinds.of(row).irreversible]  # fmt: skip
            edited = transaction.conflicts(rows, [])
        except NodeError as error:
            return str(error)
        return f"edited after the change: {', '.join(edited)}" if edited else ""

    def promise(self, sign: Sign) -> None:
        """Take the change from its run, which gave no `sign` since that one; it is on the disk on
        return. Does nothing when the run was heard meanwhile.
        """
        with Lock("lease", LOCK_S), transaction.Room(1):
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
        with Lock("lease", LOCK_S), transaction.Room(1):
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
        with Lock("lease"), transaction.Room():
            change = journal.get(self.lease.change)
            journal.require_owner(change, self.token)
            try:
                transaction.take_back(change, [], [], EngineHold())
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
        with Lock("lease", LOCK_S), transaction.Room(1):
            change = journal.get(self.lease.change)
            self._note(change, SETTLED)
        level = errors.NOTICE if change["status"] == "ROLLED_BACK" else errors.ERROR
        errors.log(f"change {change['id']} is {change['status']}: {change['reason']}", level)

    def _close(self, change: Json, head: str) -> None:
        reason = "; ".join([self._why(), *transaction.undo_left(change)])
        body = {"change": self.lease.change, "run": self.token}
        try:
            if head in ("INCONSISTENT", "COMMITTED"):
                raise NodeError(f"the head has it {head}", "no_answer")
            told = f"{reason}; {self._answer(head)}"[:2000]
            transaction.close({**body, "status": "ROLLED_BACK", "reason": told})
        except NodeError as error:
            if error.code not in ("no_answer", "unfinished"):
                raise
            told = f"{reason}; {error}"[:2000]
            transaction.close({**body, "status": "INCONSISTENT", "reason": told})

    def commit(self, peer: str) -> None:
        """Close the change COMMITTED, which `peer` says it is. Raises NodeError where steps lack.

        A run closes a change so only after the proof of the whole rig.
        """
        reason = f"{self._why()}; it was proven: {peer} has it COMMITTED"
        with Lock("lease", LOCK_S), transaction.Room(1):
            change = journal.get(self.lease.change)
            # so that the next command tells who closed it; once: each save is a sign of life
            if (change.get("taken") or {}).get("deploy") != KEEPER:
                journal.save({**change, "taken": _keeper()})
        request = {"change": self.lease.change, "status": "COMMITTED", "reason": reason}
        transaction.close(request)
        errors.log(f"change {self.lease.change} is COMMITTED: {reason}", errors.NOTICE)

    def _why(self) -> str:
        return WHY.format(seconds=self.lease.seconds)

    def _note(self, change: Json, phase: str, **more: bool) -> None:
        change["lease"] = {**(change.get("lease") or {}), "phase": phase, **more}
        journal.save(change)

    def _runs(self, unit: str) -> bool:
        return systemctl.inspect_unit(unit)["active"] not in systemctl.DOWN

    def _engine_unit(self) -> str | None:
        try:
            return config.load_engine().unit
        except NodeError:
            return None  # no engine of ours was ever here

    def _answer(self, head: str) -> str:
        """Gives a line about the former engine. Raises NodeError when it does not answer."""
        try:
            engine = config.load_engine()
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
                reply = answer.ask_ours(engine, engine.endpoint, 60.0, self._key(engine))
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


# lease keep: the keeper of an open change, as long as it is open (rigbook-lease.service).
#
# It measures the silence of the run by CLOCK_BOOTTIME and CLOCK_MONOTONIC: a clock that is set
# says
# nothing, and after a host's own sleep a run has two more beats to be heard. After a reboot the
# lease
# begins anew, unless this host had promised.

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
        if sign != self._sign or files.host_lock()[0]:
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
                found = ask_peer(address, lease.port, lease.key, lease.change, name)
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
            disarm(self.lease)
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
            self._say(f"change {self.lease.change}: nobody renews it; waits: {why}", errors.WARNING)
        return True

    def guarded_step(self) -> bool:
        """The same; a failure is told and tried again at the next look."""
        try:
            return self.step()
        except NodeError as error:
            self._say(f"change {self.lease.change}: {error}", errors.ERROR)
        except OSError as error:
            self._say(f"change {self.lease.change}: {io_reason(error)}", errors.ERROR)
        return True

    def _say(self, line: str, level: int = errors.NOTICE) -> None:
        """A line once, not at every look."""
        if line != self._told:
            self._told = line
            errors.log(line, level)


def _answer_for_ever(keeper: Keeper) -> None:
    """Answers the peers' questions, in threads of their own: an undo may take its time."""
    lease = keeper.lease

    def serve(sock: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                answer_peer(sock, lease.key, lease.change, lease.node, keeper.view)

    for address in lease.addresses:
        sock = listening_socket(address, lease.port)
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def _ready() -> None:
    """Tells systemd that this host listens for its peers (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)


def run_keeper() -> None:
    """The verb: keeps this host's lease until its change is settled on every host that is heard.

    Raises NodeError, OSError for a lease that cannot be kept; systemd tries again.
    """
    lease = load_lease()
    if lease is None:
        errors.log("lease: no change is open here")
        return
    keeper = Keeper(lease, Silence(lease.seconds))
    keeper.look()
    _answer_for_ever(keeper)
    _ready()
    errors.log(f"change {lease.change}: kept, lease {lease.seconds:.0f} s")
    while keeper.guarded_step():
        time.sleep(POLL_S)
    errors.log(f"change {lease.change} is {keeper.view.status or 'gone'}: nothing left to keep")
