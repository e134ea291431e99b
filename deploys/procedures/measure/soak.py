"""soak: hours of mixed load, and what the nodes' memory does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gevent
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import dry_run
from deploys.common.procedure import Procedure
from deploys.procedures.measure import history, prompts, soak_words
from deploys.procedures.measure.bench import counters, must_answer
from deploys.procedures.measure.sampler import Sampler
from deploys.procedures.measure.subject import longest, machines, most_streams, subject
from facts.endpoint.engine_metrics import acceptance, made
from facts.endpoint.rolling import Rolling
from gates.measure.doubts import doubts
from gates.measure.drift import drifts, overall
from operations.change.ownership import operator
from schema.desired.plan import Plan
from schema.inputs.measure_data import SoakData
from schema.measure.run import SoakRun

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
            id=history.new_id("soak"),
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
        history.save(self.run)

    def _elapsed(self) -> float:
        return time.monotonic() - self.sampler.began

    def lines(self) -> Iterator[str]:
        """Loads and looks, a line a minute; then what it means. DeployError for a leak, and for
        answers that failed.
        """
        yield self.profile_words
        yield f"{self.run.streams} streams for {self.seconds:.0f} s; Ctrl-C keeps what was measured"
        room = longest(self.run.subject.argv)
        ask = partial(prompts.prompt, mark=f"{self.run.id[-4:]}-", longest=room)
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
                    yield soak_words.minute(self.run)
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
        path = history.save(self.run)
        judged = [drift for machine in rows for drift in drifts(machine)]
        yield from soak_words.end(self.run, judged)
        yield f"kept as {path}"
        yield history.save_on_head(self.plan, self.run)
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
