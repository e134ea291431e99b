"""The other half of a pair: link, connections, watchdog."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from node.change import journal
from node.core import errors, files, proc
from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run
from node.core.systemctl import systemctl
from node.engine import config
from node.engine.config import Engine
from node.processes import address
from node.rules.engine import MOST, WINDOW_S

# Whether our end of the fabric is there, and whether a peer's host answers on it.

TIMEOUT_S = 5.0
# discard: nothing listens there, so that a refusal proves the host without talking to a program
KNOCK_PORT = 9


def missing_link(device: str, address: str) -> str | None:
    """Gives what is not there yet of our end of the fabric, or None when all of it is."""
    try:
        done = run(["ip", "-j", "addr", "show", "dev", device], TIMEOUT_S)
    except FileNotFoundError:
        return "ip not found: install iproute2"
    except TimedOut as error:
        return str(error)
    if done.rc != 0:
        return f"no device {device}"
    try:
        rows = [row for row in json.loads(done.out or "[]") if row.get("ifname") == device]
        found = [str(info.get("local")) for info in rows[0].get("addr_info", [])]
        flags = rows[0].get("flags", [])
    except (ValueError, IndexError, AttributeError):
        return f"ip says nothing about {device}"
    if address not in found:
        return f"{device} has no {address} (it has {', '.join(found) or 'no address'})"
    return None if "LOWER_UP" in flags else f"{device} has no carrier"


def link_mtu(device: str) -> int | None:
    """Gives a device's MTU in bytes, or None when there is none."""
    try:
        with open(f"/sys/class/net/{device}/mtu", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def peer_answers(peer: str, source: str, timeout_s: float = 2.0) -> bool:
    """Gives True when the peer's host answers on the fabric: to a connect, else to a ping.

    A refused connect is an answer; a firewall that drops it leaves the ping.
    """
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as knock:
        knock.settimeout(timeout_s)
        try:
            knock.bind((source, 0))
            knock.connect((peer, KNOCK_PORT))
            return True
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return True
    try:
        return run(["ping", "-n", "-c", "1", "-W", "1", "-I", source, peer], 3.0).rc == 0
    except (FileNotFoundError, TimedOut):
        return False


# The connections that hold a rig of several nodes together, read from /proc/net/tcp.
#
# While the engine lives each worker keeps a connection to the master port on the head's fabric
# address; it is gone when one rank dies [ran]. A connection is told from its successor by both
# ports, so a peer that died and came back is not mistaken for one that stayed.

# include/net/tcp_states.h; CLOSE_WAIT: the other end is gone and ours has not noticed
_ESTABLISHED, _CLOSE_WAIT = "01", "08"
Connection = tuple[str, int, str, int]


class Joined(NamedTuple):
    """By peer: the connections that stand, and whether one is left whose other end has gone."""

    held: dict[str, set[str]]
    half_open: set[str]


def _end(text: str) -> tuple[str, int]:
    """Gives (address, port) of a column; IPv4 in IPv6 as plain IPv4."""
    host, _, port = text.partition(":")
    return address(host).replace("::ffff:", "", 1), int(port, 16)


def connections(text: str, state: str = _ESTABLISHED) -> list[Connection]:
    """Gives (local address, port, remote address, port) of the rows of /proc/net/tcp{,6}."""
    found: list[Connection] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == state:
            found.append((*_end(fields[1]), *_end(fields[2])))
    return found


def by_peer(engine: Engine, rows: list[Connection]) -> dict[str, set[str]]:
    """Gives, for each peer that we must be joined with, its connections' names.

    The head is joined with every worker; a worker with the head alone.
    """
    if engine.master is None or engine.fabric is None:
        return {}
    master, ours = tuple(engine.master), engine.fabric.address
    if engine.role == "head":
        found: dict[str, set[str]] = {peer: set() for peer in engine.peers}
        for row in rows:
            if row[:2] == master and row[2] in found:
                found[row[2]].add(f"{row[2]}:{row[3]}")
        return found
    held = {f"{row[0]}:{row[1]}" for row in rows if row[2:] == master and row[0] == ours}
    return {engine.master.address: held}


def read_connections(engine: Engine) -> Joined:
    """Gives how this host is joined with its peers now.

    A worker whose head died keeps the dead connection for as long as it lives [ran]: that tells
    of one that nobody has seen while it stood.
    """
    tables = [proc.read_text(table) for table in ("/proc/net/tcp", "/proc/net/tcp6")]
    held = by_peer(engine, [row for text in tables for row in connections(text)])
    left = by_peer(engine, [row for text in tables for row in connections(text, _CLOSE_WAIT)])
    return Joined(held, {peer for peer, names in left.items() if names})


# pair: one look at whether this host's rank is still joined with its peers (every 15 s).
#
# A rank that lost its peer says nothing (the head's /health stays 200), and a new head against a
# stale worker hangs at the rendezvous. Each node restarts its own half, so the pair restarts as
# one.

PEER_MISSES = 3
# three checks, 15 s apart
BROKEN_S = 28.0
MARGIN_S = 60.0
# whoever holds the host's lock for longer than this is at work; the next look is 15 s away
LOCK_S = 0.2
# a start that has lasted this long was a good one: what ends it later is another story
STABLE_S = 900.0


class Seen(NamedTuple):
    """One look: the unit's state, seconds since its program started, and the connections."""

    active: str
    sub: str
    invocation: str
    since_s: float | None
    joined: Joined

    def runs(self) -> bool:
        """Gives True while the engine's program runs: serving, or loading before its answer."""
        up = self.active == "active" or (self.active, self.sub) == ("activating", "start-post")
        return up and self.since_s is not None


class Verdict(NamedTuple):
    """The state to keep for the next look, and why to restart the unit now (None: no reason).

    `follows`: a peer that had joined is gone, so the restart follows what that peer did.
    """

    state: Json
    restart: str | None
    follows: bool = False


def fresh_peer(invocation: str) -> Json:
    """Gives the state of a start that nothing is known of yet.

    `followed` are the times (monotonic seconds) of the restarts that followed a peer: it outlives
    a start.
    """
    return {"format": 1, "invocation": invocation, "joined": {}, "last": {}, "settled": None,
            "misses": 0, "since": None, "told": "", "proven": False, "followed": []}  # fmt: skip


def judge_peer(state: Json, seen: Seen, now: float, budget_s: float, head: bool) -> Verdict:
    """Gives the verdict of one look. Pure; `now` is a monotonic time in seconds.

    A peer is joined by the connections that a look finds; it is lost when those are gone, or when,
    after the head has answered, a further connection of it stays (its engine was started anew
    while the old connection hangs half-open).
    """
    if state.get("invocation") != seen.invocation:
        state = {**fresh_peer(seen.invocation), "followed": state.get("followed", [])}
    settled = state["settled"]
    joined: dict[str, list[str]] = dict(state["joined"])
    for peer, held in seen.joined.held.items():
        last = set(state["last"].get(peer, []))
        # while it starts, an engine may open a connection more, or change one for another
        starting = settled is None and (last & set(joined.get(peer, [])) or peer not in joined)
        if held and starting:
            joined[peer] = sorted(held)
    now_held = {peer: sorted(held) for peer, held in seen.joined.held.items()}
    if head and settled is None and seen.active == "active" and len(joined) == len(now_held):
        settled = now_held
    state = {**state, "joined": joined, "last": now_held, "settled": settled}
    reason = _lost(seen, joined, settled)
    if reason is None:
        state.update(misses=0, since=None)
        return Verdict(state, _never(seen, joined, budget_s))
    since = now if state["since"] is None else state["since"]
    state.update(misses=state["misses"] + 1, since=since)
    broken = state["misses"] >= PEER_MISSES and now - since >= BROKEN_S
    return Verdict(state, f"{reason} for {now - since:.0f} s" if broken else None, True)


def _lost(seen: Seen, joined: dict[str, list[str]], settled: Json | None) -> str | None:
    """Gives which peer is no longer joined as it was, or None."""
    for peer, held in seen.joined.held.items():
        gone = peer in joined and not held & set(joined[peer])
        if gone or (not held and peer in seen.joined.half_open):
            return f"the connection with {peer} is gone"
        if settled is not None and held - set(settled.get(peer, [])):
            return f"{peer} has joined anew beside a connection that hangs"
    return None


def _never(seen: Seen, joined: dict[str, list[str]], budget_s: float) -> str | None:
    """Gives which peer did not join in its time, or None."""
    limit = budget_s + MARGIN_S
    late = [peer for peer in seen.joined.held if peer not in joined]
    if late and seen.since_s is not None and seen.since_s > limit:
        return f"{', '.join(late)} never joined in {seen.since_s:.0f} s (allowed: {limit:.0f} s)"
    return None


def folder() -> str:
    """Gives the folder of the state that ends with this boot."""
    root = os.environ.get("RIGBOOK_STATE")
    return os.path.join(root, "run") if root else "/run/rigbook"


def _state_path() -> str:
    return os.path.join(folder(), "pair.json")


def save_state(state: Json) -> None:
    """Write the state for the next look."""
    files.save_state(_state_path(), state, 0o755)


def look(engine: Engine) -> Seen:
    """Gives one look at this host. Raises NodeError when systemd does not answer."""
    wanted = "ActiveState,SubState,InvocationID,ExecMainStartTimestampMonotonic,ExecMainPID"
    text = systemctl("show", "-p", wanted, "--", engine.unit)
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    started = int(found.get("ExecMainStartTimestampMonotonic") or 0)
    return Seen(
        found.get("ActiveState", ""),
        found.get("SubState", ""),
        found.get("InvocationID", ""),
        time.monotonic() - started / 1e6 if started else None,
        read_connections(engine),
    )


def hindrance(engine: Engine, peers: list[str]) -> str | None:
    """Gives why a restart would be wrong now: an operator is at work, or a peer's host is away."""
    held, who = files.host_lock()
    if held:
        return f"not restarted: the lock is held by {who}"
    at_work = open_change()
    if at_work is not None:
        return at_work
    source = engine.fabric.address if engine.fabric else ""
    away = [peer for peer in peers if not peer_answers(peer, source)]
    return f"not restarted: no answer from {', '.join(away)} on the fabric" if away else None


def open_change() -> str | None:
    """Gives why the journal forbids a restart: a change of any operation is open on this host."""
    changes, broken = journal.read_all()
    if broken:
        return f"not restarted: the journal is damaged: {', '.join(broken)}"
    for change in changes:
        if change["status"] == "OPEN":
            return f"not restarted: change {change['id']} is open ({change['operator']})"
    return None


def undisturbed(name: str, why: str, restart: Callable[[str], object]) -> str | None:
    """Restart a unit under the host's lock, where nobody opens a change; gives why not."""
    try:
        with files.Lock("pair", LOCK_S):
            at_work = open_change()
            if at_work is None:
                errors.log(f"restarting {name}: {why}", errors.WARNING)
                save_state(fresh_peer(""))
                restart(name)
            return at_work
    except NodeError as error:
        if error.code != "locked":
            raise
        return f"not restarted: {error}"


def check_peer(
    engine: Engine, restart: Callable[[str], object], forget: Callable[[str], object]
) -> None:
    """One look, and the restart of our own unit when the pair is broken.

    `restart` gets the unit's name; it counts against the unit's start limit. `forget` gets it once
    a start has lasted: it sets that count back, so that deaths hours apart are no crash loop. It
    gets it before a restart that follows a peer, too, as often as the watch may restart that peer
    (node/engine/silence.py): this rank did not crash, and the peer would wait for it in vain.
    """
    seen = look(engine)
    state = files.load_state(_state_path(), fresh_peer(""))
    if not seen.runs():
        text = f"{engine.unit} has failed; systemctl status {engine.unit} says why"
        _tell(state, text if seen.active == "failed" else "")
        return
    head = engine.role == "head"
    verdict = judge_peer(state, seen, time.monotonic(), engine.start_budget_s, head)
    if verdict.restart is None:
        state = {**verdict.state, "told": state["told"] if verdict.state["misses"] else ""}
        if not state["proven"] and _lasted(seen, state):
            forget(engine.unit)
            state["proven"] = True
        save_state(state)
        return
    now = time.monotonic()
    followed = [then for then in verdict.state["followed"] if now - then < WINDOW_S]

    def follow(unit: str) -> None:
        if verdict.follows and len(followed) < MOST:
            forget(unit)
            followed.append(now)
        save_state({**fresh_peer(""), "followed": followed})
        restart(unit)

    why_not = hindrance(engine, list(seen.joined.held))
    why_not = why_not or undisturbed(engine.unit, verdict.restart, follow)
    if why_not:
        _tell({**verdict.state, "told": state["told"]}, f"{verdict.restart}; {why_not}")


def _lasted(seen: Seen, state: Json) -> bool:
    """Gives True for a whole pair whose engine has run long enough to call the start good."""
    return seen.active == "active" and not state["misses"] and (seen.since_s or 0) >= STABLE_S


def _tell(state: Json, text: str) -> None:
    """Say a line once, not every 15 s; the digits in it do not make it a new one."""
    plain = "".join(char for char in text if not char.isdigit())
    if text and plain != state["told"]:
        errors.log(text, errors.WARNING)
    save_state({**state, "told": plain})


def run_peer_watchdog() -> None:
    """The verb: one look at this host's engine."""
    engine = config.load_engine()
    check_peer(
        engine,
        lambda name: systemctl("restart", "--no-block", name),
        # resets the start limit's counter, in any state (man systemctl)
        lambda name: systemctl("reset-failed", name),
    )
