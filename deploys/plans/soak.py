"""soak: hours of mixed load, and what the nodes' memory does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gevent
from pyinfra.api.exceptions import DeployError

from deploys.plans import measure
from deploys.plans.bench import counters, must_answer
from deploys.plans.measure import Sampler, longest, machines, most_streams, subject
from deploys.plans.rig import Procedure, dry_run
from facts.measure import Rolling, acceptance, made
from gates.measure import Drift, doubts, drifts, overall
from operations.run import operator
from schema.keys import SoakData
from schema.measure import SoakRun
from schema.plan import Plan

# What is said of a soak, a line each. Pure.

GIB = 1 << 30
_NAMES = {
    "available": "memory used", "vram": "GPU memory", "page_cache": "page cache", "shmem": "Shmem",
}  # fmt: skip


def words_of_minute(run: SoakRun) -> str:
    """How it goes."""
    rate = run.tokens / run.seconds if run.seconds else 0.0
    left = [
        f"{machine.node} {machine.samples[-1].available / GIB:.1f} GiB available"
        for machine in run.machines
        if machine.samples and machine.samples[-1].available is not None
    ]
    return (
        f"{run.seconds:.0f} s: {run.completed} answers, {run.failed} failed, {rate:.1f} tok/s; "
        + ", ".join(left)
    )


def words_of_end(run: SoakRun, found: Sequence[Drift]) -> Iterator[str]:
    """Doubts first, then what was served, each drift, and the verdict."""
    yield from measure.words_of_doubts(run.doubts)
    rate = run.tokens / run.seconds if run.seconds else 0.0
    slowest = f", the slowest {run.slowest_s:.0f} s" if run.slowest_s is not None else ""
    yield (
        f"{run.seconds:.0f} s at {run.streams} streams: {run.completed} answers{slowest}, "
        f"{run.failed} failed, {run.tokens} tokens, {rate:.1f} tok/s"
    )
    if run.acceptance is not None:
        yield measure.acceptance(run.acceptance)
    for drift in found:
        yield _drift(drift)
    yield f"memory: {overall(found)}"


def _drift(drift: Drift) -> str:
    name = f"{drift.node}: {_NAMES[drift.what]}"
    if drift.per_hour is None:
        fitted = "too few independent samples for a slope"
    else:
        slope = drift.per_hour
        fitted = f"{_gib(slope.value)} GiB an hour ({_gib(slope.low)} to {_gib(slope.high)})"
    ends = f"{drift.first / GIB:.2f} -> {drift.last / GIB:.2f} GiB"
    if drift.what == "available":
        ends = f"{ends} available"
    if drift.verdict is None or drift.limit is None:
        return f"{name}: {fitted}; {ends}"
    return f"{name}: {fitted}; {ends}; {drift.verdict} (of {_gib(drift.limit)} GiB an hour)"


def _gib(size: float) -> str:
    return f"{size / GIB:+.4f}"


# Streams where nobody says, as the third seed soaked; and no more than the engine takes.
STREAMS = 8
# Between two lines for a person, and two writes of the document.
LINE_S, SAVE_S = 60.0, 30.0
# What is under way at the end of the time may take this long.
END_S = 120.0
TICK_S = 1.0


class Soak:
    """One soak while it runs; `run` is its document so far."""

    def __init__(self, plan: Plan, data: SoakData) -> None:
        self.plan, self.seconds = plan, float(data.seconds)
        self.where = must_answer(plan)
        self.before = counters(self.where)
        found, self.profile_words = subject(plan)
        most = most_streams(found.argv)
        if data.streams is not None and data.streams > most:
            raise DeployError(
                f"streams: {data.streams} is more than --max-num-seqs {most} of the engine, the "
                f"rest would wait; allowed: at most {most}"
            )
        self.sampler = Sampler(plan)
        self.run = SoakRun(
            id=measure.new_id("soak"),
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            asked_s=self.seconds,
            operator=operator(),
            subject=found,
            streams=data.streams or min(STREAMS, most),
        )

    def keep(self, load: Rolling, **more: Any) -> None:
        """Writes the document with what has come."""
        tally = load.tally
        self.run = self.run.model_copy(
            update={
                "seconds": round(self._elapsed(), 1),
                "completed": tally.completed,
                "failed": tally.failed,
                "tokens": tally.tokens,
                "errors": tuple(tally.errors),
                "slowest_s": tally.slowest_s,
                "machines": machines(self.plan, self.sampler.samples),
                **more,
            }
        )
        measure.save_run(self.run)

    def _elapsed(self) -> float:
        return time.monotonic() - self.sampler.began

    def lines(self) -> Iterator[str]:
        """Loads and looks, a line a minute; then what it means. DeployError for a leak, and for
        answers that failed.
        """
        yield self.profile_words
        yield f"{self.run.streams} streams for {self.seconds:.0f} s; Ctrl-C keeps what was measured"
        room = longest(self.run.subject.argv)
        ask = partial(measure.prompt, mark=f"{self.run.id[-4:]}-", longest=room)
        self.sampler.look()
        with self.sampler.meanwhile(), Rolling(self.where, self.run.streams, ask) as load:
            told = saved = 0.0
            self.keep(load)
            while (now := self._elapsed()) < self.seconds:
                gevent.sleep(min(TICK_S, self.seconds - now))
                if now - saved >= SAVE_S:
                    saved = now
                    self.keep(load)
                if now - told >= LINE_S:
                    told = now
                    self.keep(load)
                    yield words_of_minute(self.run)
            self.keep(load)
            load.stop(END_S)
        after = counters(self.where)
        # Tokens of the answers after the time belong to this run, as the load of others does not.
        ours = load.tally.tokens
        rows = machines(self.plan, self.sampler.samples)
        found = doubts(
            (), rows, ours, made(self.before, after), self.before.busy, self.before.tokens
        )  # fmt: skip
        self.run = self.run.model_copy(
            update={"complete": True, "doubts": found, "machines": rows,
                    "acceptance": acceptance(self.before, after)}
        )  # fmt: skip
        path = measure.save_run(self.run)
        judged = [drift for machine in rows for drift in drifts(machine)]
        yield from words_of_end(self.run, judged)
        yield f"kept as {path}"
        yield measure.save_on_head(self.plan, self.run)
        bad = []
        if self.run.failed:
            bad.append(f"{self.run.failed} answers failed: {self.run.errors[0]}")
        if overall(judged) == "leak":
            nodes = dict.fromkeys(drift.node for drift in judged if drift.verdict == "leak")
            bad.append(f"memory leaks on {', '.join(nodes)}")
        if bad:
            raise DeployError(f"{'; '.join(bad)}; the figures are in {path}")


def soaked(rig: Procedure) -> Iterator[str]:
    """The lines of a soak of what runs now; with --dry what it would do."""
    if dry_run():
        yield "would load the engine that runs; --dry puts no load on it"
        return
    yield from Soak(rig.plan, rig.data(SoakData)).lines()
