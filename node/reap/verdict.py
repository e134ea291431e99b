"""The verdict of a reap: wait until all is as wanted, or say what is not and what that means."""

from __future__ import annotations

import time
from typing import NamedTuple

from node.core.errors import Json
from node.reap import proof
from node.reap.find import Candidate
from node.reap.request import JudgedView, ReapRequest, inspect_host

POLL_S = 0.25


class Verdict(NamedTuple):
    """The last look, the verdict (docs/reference/node.md) and the evidence in words."""

    seen: JudgedView
    name: str
    evidence: str


class _Now(NamedTuple):
    """What is not as wanted at one moment, each in words."""

    alive: list[str]
    held: list[str]
    lacks: list[str]
    listed: list[int]
    memory: Json

    def is_settled(self, seen: JudgedView) -> bool:
        """Gives True when nothing is left to wait for."""
        return not (self.alive or self.held or self.lacks or self.listed or seen.orphans)


def prove(job: ReapRequest, seen: JudgedView, known: list[Candidate]) -> Verdict:
    """Gives the verdict, at the latest after settle_s. `known` are those that were signalled."""
    deadline = time.monotonic() + job.settle_s
    pids = {one.stat.pid for one in known}
    while True:
        memory = proof.measure()
        now = _Now(
            alive=proof.survivors(known),
            held=seen.foreign(job.ports),
            lacks=proof.memory_lacks(job.wanted, memory),
            listed=[row["pid"] for row in memory["processes"] or [] if row["pid"] in pids],
            memory=memory,
        )
        if now.is_settled(seen):
            return Verdict(seen, "clean", "")
        if time.monotonic() >= deadline:
            return _unsettled(job, seen, now)
        time.sleep(POLL_S)
        seen = inspect_host(job)


def _unsettled(job: ReapRequest, seen: JudgedView, now: _Now) -> Verdict:
    """Gives the verdict on a host that did not settle."""
    listed = now.memory["processes"] or []
    ports = [] if now.held else [p for p in job.ports if p in seen.view.holders]
    held = [f"port {p} is held by {proof.holder_words(seen.view, p)}" for p in ports]
    said = [*now.alive, *now.held, *held, *now.lacks]
    said.append(f"the driver lists: {', '.join(proof.computing(listed)) or 'no process'}")
    # a socket without a process is the kernel's: nobody can be ended for it
    unseen = any(seen.view.holders.get(port) == [] for port in job.ports)
    if now.alive or unseen or now.listed:
        return Verdict(seen, "needs_reboot", "; ".join(said))
    if seen.orphans or now.held:
        said += [f"pid {row.candidate.stat.pid} is there again: {row.why}" for row in seen.orphans]
        return Verdict(seen, "refused", "; ".join(said))
    # memory that a spared process holds is its own: a reboot is no answer to that
    spared = {row.candidate.stat.pid for row in seen.spared}
    if any(row["pid"] in spared for row in listed):
        return Verdict(seen, "clean", "; ".join(said))
    return Verdict(seen, "needs_reboot", "; ".join(said))
