"""The engines that run by other means on this host, with all that belongs to each. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from node.core import proc
from node.reap import find
from node.reap.find import TITLE, Candidate
from node.rules.patterns import LOGIN_UNIT


class Started(NamedTuple):
    """What somebody started: its uppermost process, the servers below it, and all of them."""

    top: Candidate
    servers: tuple[Candidate, ...]
    all: tuple[Candidate, ...]


def candidate(pid: int) -> Candidate | None:
    """Gives a process with its identity, None when it is gone. No sign is looked for."""
    stat, uid = proc.stat(pid), proc.uid(pid)
    if stat is None or uid is None or find.is_dead(stat):
        return None
    # a read of its command line would wait as long as it does, under the host's lock
    argv = () if stat.state == "D" and find.is_stuck(stat) else proc.argv(pid)
    return Candidate(
        stat, proc.boot_id(), uid, argv[0] if argv else stat.comm, proc.exe(pid),
        proc.cgroup(pid), find.namespace(pid), (), True, find.is_server(argv),
    )  # fmt: skip


def in_container(identifier: str, main_pid: int) -> list[Started]:
    """Gives what `docker exec` started in a container that has an engine below it.

    `main_pid` is the container's own main process, which is left alone with what it started.
    """
    pids = (pid for pid in proc.pids() if proc.container_of(proc.cgroup(pid)) == identifier)
    inside = {pid: one for pid in pids if (one := candidate(pid))}
    tops: dict[int, list[Candidate]] = {}
    for one in inside.values():
        if one.is_server and (top := _top(one.stat.pid, inside, {main_pid})) != main_pid:
            tops.setdefault(top, []).append(one)
    # ranks whose server is gone hang below the container's first process
    ranks = {pid: one for pid, one in inside.items() if one.argv0.startswith(TITLE)}
    strays = [one for pid, one in ranks.items() if _top(pid, inside, {main_pid}) not in tops]
    return [_started(inside[top], servers, inside, strays) for top, servers in tops.items()]


def on_host(pid: int) -> list[Started]:
    """Gives the engine of this pid that a login's shell started, none when it is no such engine."""
    one = candidate(pid)
    if one is None or not one.is_server or proc.container_of(one.cgroup):
        return []
    unit = proc.unit_of(one.cgroup)
    if unit is not None and not LOGIN_UNIT.match(unit):
        return []
    everything = {found.stat.pid: found for each in proc.pids() if (found := candidate(each))}
    return [_started(one, [one], everything, [])]


def _top(pid: int, inside: dict[int, Candidate], below: Collection[int]) -> int:
    """Gives the uppermost process above `pid` that is still inside and is none of `below`.

    One below the main process itself gives that.
    """
    top = pid
    while True:
        parent = inside[top].stat.ppid
        if parent in below:
            return parent if inside[top].stat.session == inside[parent].stat.session else top
        if parent not in inside:
            return top
        top = parent


def _started(
    top: Candidate, servers: list[Candidate], among: dict[int, Candidate], strays: list[Candidate]
) -> Started:
    """Gives a start with every process below its uppermost one."""
    found = {top.stat.pid: top}
    while True:
        more = {pid: one for pid, one in among.items()
                if one.stat.ppid in found and pid not in found}  # fmt: skip
        if not more:
            break
        found.update(more)
    found.update({one.stat.pid: one for one in strays})
    return Started(top, tuple(servers), tuple(found.values()))
