"""prelaunch: what must be so before the engine starts (the unit's ExecStartPre).

It waits for the fabric, docker and the peers with budgets, removes what a crash left behind, and
refuses a start that cannot get its memory: three refusals end the unit's start limit before a
crash loop fills memory and caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from node.core import log
from node.core.errors import CannotRead, NodeError
from node.docker import containers
from node.engine import before_start, config, fabric_link, memory_need, start_memory
from node.engine.config import Engine
from node.snapshot import memory

POLL_S = 1.0
PROGRESS_S = 10.0
DOCKER_WAIT_S = 120.0
# memory of ended processes comes back within a second; a driver may load late at boot
MEMORY_WAIT_S = 60.0


def wait(what: str, budget_s: float, missing: Callable[[], str | None]) -> None:
    """Waits until `missing` gives None; says every 10 s what it gives.

    Raises NodeError (`not_ready`) after `budget_s` seconds.
    """
    started = time.monotonic()
    told = started
    while True:
        reason = missing()
        now = time.monotonic()
        if reason is None:
            if told > started:
                log.say(f"{what}: there after {now - started:.0f} s")
            return
        if now - started >= budget_s:
            raise NodeError(f"{what}: {reason}, after {now - started:.0f} s", "not_ready")
        if now - told >= PROGRESS_S:
            told = now
            log.say(f"waiting for {what}: {now - started:.0f} s of {budget_s:.0f} s; {reason}")
        time.sleep(POLL_S)


def wait_for_fabric(engine: Engine) -> None:
    """Waits for our address on the fabric's device. Raises NodeError (`not_ready`)."""
    link = engine.fabric
    if link is None:
        return
    what = f"the fabric ({link.device}, {link.address})"
    wait(what, link.wait_s, lambda: fabric_link.missing(link.device, link.address))
    found = fabric_link.mtu(link.device)
    if found is not None and found < link.mtu:
        log.say(f"{link.device} has MTU {found}, the rig wants {link.mtu}", log.WARNING)


def wait_for_docker() -> None:
    """Waits until docker takes requests. Raises NodeError (`not_ready`)."""
    wait("docker", DOCKER_WAIT_S, lambda: None if containers.answers() else "no answer yet")


def wait_for_peers(engine: Engine) -> None:
    """The head waits, within its start budget, until every peer's host is on the fabric.

    A head that starts alone would hold its memory at a rendezvous that nobody comes to.
    """
    link = engine.fabric
    if link is None or engine.role != "head":
        return
    deadline = time.monotonic() + engine.start_budget_s
    for peer in engine.peers:

        def silent(peer: str = peer, source: str = link.address) -> str | None:
            return None if fabric_link.peer_answers(peer, source) else "no answer on the fabric"

        wait(f"the peer {peer}", max(1.0, deadline - time.monotonic()), silent)


def remove_leftover(engine: Engine) -> None:
    """Removes a container of our name that a crash of docker or of the host left behind."""
    if engine.container is None:
        return
    try:
        if containers.remove(engine.container):
            log.say(f"removed the container {engine.container} that was left over")
    except CannotRead as error:
        raise NodeError(str(error), "not_ready") from None


def make_room(engine: Engine) -> None:
    """Drops the page cache where it is in the way, and refuses a start without its memory.

    Raises NodeError (`memory_short`) with the numbers and the holders.
    """

    def lacking() -> str | None:
        try:
            found = memory_need.shortage(engine)
        except CannotRead as error:
            return str(error)
        return found.evidence if found else None

    try:
        need = memory_need.system_need(engine) if engine.needs_nvidia else None
    except CannotRead:
        need = None  # `lacking` asks again, and says why
    if need is not None and memory_need.caches_in_the_way(need):
        log.say(before_start.drop_caches(engine, need))
    try:
        wait("memory for the start", MEMORY_WAIT_S, lacking)
    except NodeError as error:
        raise NodeError(str(error), "memory_short", "rignode reap; ls -l /dev/shm") from None
    if need is not None:
        _note_start(engine)


def _note_start(engine: Engine) -> None:
    """Measures the last start on unified memory, says what that leaves, and notes this one."""
    start_memory.measure(engine)
    try:
        short, available = memory_need.margin(engine), int(memory.read()["available"])
    except CannotRead as error:
        log.say(str(error), log.WARNING)
        return
    if short is not None:
        log.say(short, log.WARNING)
    start_memory.note(available)


def prelaunch(engine: Engine) -> None:
    """All of it, in order; returns when the engine may start. Raises NodeError."""
    before_start.require_whole_weights(engine)
    wait_for_fabric(engine)
    if engine.container is not None:
        wait_for_docker()
    remove_leftover(engine)
    for line in before_start.orphans(engine):
        log.say(line)
    wait_for_peers(engine)
    make_room(engine)
    # again: all of the waiting may lie in between
    before_start.require_whole_weights(engine)


def run() -> None:
    """The verb: reads this host's engine and makes it ready to start."""
    engine = config.load()
    prelaunch(engine)
    log.say(f"ready: {engine.role} (rank {engine.rank}) of rig {engine.rig}")


def stop_container() -> None:
    """The verb `container stop`: quiet when there is none."""
    name = config.load().container
    try:
        if name is not None:
            containers.stop(name, 30)
    except CannotRead as error:
        raise NodeError(str(error), "container") from None


def remove_container() -> None:
    """The verb `container remove`: quiet when there is none.

    It runs after each stop: what a failed start took of the memory is known from there on.
    """
    engine = config.load()
    name = engine.container
    start_memory.measure(engine)
    try:
        if name is not None:
            containers.remove(name)
    except CannotRead as error:
        raise NodeError(str(error), "container") from None
