"""bench: an engine measured the same way each time, part by part; each part is kept as it comes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gevent
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans import measure
from deploys.plans.measure import Sampler, longest, machines, most_streams, subject
from deploys.plans.rig import Procedure, dry_run, files_in, inventory_name, once_a_run
from deploys.plans.serve import endpoint_with_key
from deploys.plans.verify import THINKING, without_thoughts
from facts import measure as facts_measure
from facts.endpoint import Endpoint, ask
from facts.measure import (
    ClientRound,
    Counters,
    Loaded,
    NoMetrics,
    NotMeasured,
    StartTimes,
    acceptance,
    decoded,
    load,
    made,
    scrape,
)
from facts.node import AskFailed, observe, real
from gates.measure import cold, doubts
from gates.processes import engine_unit
from operations import engine
from operations.apply import unit_step
from operations.engine import NotOurs, ask_ours, wait_for_answer
from operations.run import Run, StepFailed, operator
from schema.core import SpecError
from schema.keys import BenchData
from schema.load import profile_name
from schema.measure import BenchRun, Other, Point, Prefill, Start
from schema.plan import UNIT, Plan, engine_spec
from schema.render_engine import documents
from schema.snapshot import NodeSnapshot

# A stream that decodes slower than that is not waited for.
SLOWEST_TOK_S = 0.5
# For the head's own question, where this machine gets no answer.
ASK_S = 30.0
# Prompt tokens a second, likewise.
SLOWEST_PREFILL = 50
# What the chat template and the one token of the answer take of the longest prompt.
TEMPLATE_TOKENS = 64
PREFILL_ROUNDS = 3
STREAMS = (1, 2, 4, 8, 16)
# Until an answer that has ended stands in the engine's counters.
COUNTED_S = 3.0


@dataclass(frozen=True)
class Wanted:
    """What one bench measures: `streams` at a time, `lengths` of prompts, in tokens."""

    streams: tuple[int, ...]
    tokens: int
    rounds: int
    lengths: tuple[int, ...]
    quick: bool = False


def wanted(data: BenchData, argv: tuple[str, ...]) -> Wanted:
    """What is measured of an engine with this command line: where nobody says, no more streams than
    it takes at the same time; no prompt that it does not take. DeployError when nothing is left.
    """
    most, length = most_streams(argv), longest(argv)
    room = None if length is None else length - TEMPLATE_TOKENS
    if length is not None and data.tokens + measure.PROMPT_TOKENS > length:
        raise DeployError(
            f"tokens: {data.tokens} with their prompts do not fit into --max-model-len {length} of "
            f"the engine; allowed: at most {max(0, length - measure.PROMPT_TOKENS)}"
        )
    if data.quick:
        return Wanted((1,), data.tokens, data.rounds, (), quick=True)
    usual = {n for n in STREAMS if n <= most}
    streams = tuple(sorted({*(data.streams or usual), 1}))
    lengths = tuple(sorted(n for n in data.contexts if room is None or n <= room))
    return Wanted(streams, data.tokens, data.rounds, lengths)


def must_answer(plan: Plan) -> Endpoint:
    """The endpoint, once our own engine has answered there; DeployError in one line."""
    where = endpoint_with_key(plan)
    nodes = [node.name for node in plan.rig.nodes]
    try:
        answer = ask_ours(real(state), plan.rig.head.name, nodes, where, ask, ASK_S)
    except NotOurs as error:
        raise DeployError(f"nothing was measured: {error}") from None
    if answer.ok and answer.not_from_here:
        raise DeployError(
            f"nothing was measured: this machine asks the engine, and cannot reach {where.base_url}"
        )
    if not answer.ok:
        raise DeployError(
            f"nothing was measured: {where.model} does not answer: {answer.detail}; find out why "
            f"with: pyinfra {inventory_name()} deploys/doctor.py -y"
        )
    return where.held_by_ours()


def counters(where: Endpoint) -> Counters:
    """The engine's counters now; DeployError in one line."""
    try:
        return scrape(where)
    except NoMetrics as error:
        raise DeployError(f"not measured: {error}") from None


class Bench:
    """One bench while it runs; `run` is its document so far."""

    def __init__(self, plan: Plan, data: BenchData) -> None:
        self.plan = plan
        self.where = must_answer(plan)
        self.quiet = without_thoughts(plan.recipe, self.where)
        self.before = counters(self.where)
        found, self.profile_words = subject(plan)
        self.wanted = wanted(data, found.argv)
        self.sampler = Sampler(plan)
        self.ours = 0
        name = measure.new_id("bench")
        self.run = BenchRun(
            id=name,
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            client="none",
            operator=operator(),
            subject=found,
            cold=cold(self.before.tokens),
            machines=machines(plan, {}),
            reference=tuple(
                row.model_dump(mode="json")
                for row in plan.recipe.expect.baselines
                if row.profile == found.profile
            ),
        )

    def keep(self, **more: Any) -> None:
        """Writes the document with what has come."""
        values = {"seconds": round(time.monotonic() - self.sampler.began, 1), **more}
        rows = machines(self.plan, self.sampler.samples)
        self.run = self.run.model_copy(update={**values, "machines": rows})
        measure.save_run(self.run)

    def lines(self) -> Iterator[str]:
        """Measures, a line for each part as it comes. DeployError when a part cannot be done."""
        yield self.profile_words
        yield from measure.words_of_doubts(
            doubts((), (), 0, 0, self.before.busy, self.before.tokens)
        )
        with self.sampler.meanwhile():
            for streams in self.wanted.streams:
                before = counters(self.where)
                yield measure.words_of_point(self._sweep(streams, self.quiet))
                if streams == 1:
                    yield self._other(self._first_off(before))
            if self._thinks() and not self.wanted.quick:
                yield measure.words_of_point(self._sweep(1, self.where, thinking=True))
            after = counters(self.where)
            self.keep(acceptance=acceptance(self.before, after))
            if self.run.acceptance:
                yield measure.acceptance(self.run.acceptance)
            for length in self.wanted.lengths:
                yield measure.words_of_prefill(self._prefill(length))
            last = counters(self.where)
        yield from self._end(last)

    def _thinks(self) -> bool:
        return self.quiet != self.where or any(
            dict(self.where.chat_template_kwargs).get(name) for name in THINKING
        )

    def _load(self, where: Endpoint, tokens: int, rounds: Any, seconds: float) -> Loaded:
        try:
            found = load(real(state), self.plan, where, tokens, rounds, self.run.id, round(seconds))
        except AskFailed as error:
            if not self.run.points:
                raise DeployError(f"nothing was measured: {error}") from None
            raise DeployError(f"{error}; what was measured is kept in {self._path()}") from None
        self.run = self.run.model_copy(update={"client": found.client})
        return found

    def _path(self) -> str:
        return str(measure.history_folder(self.plan.rig.name) / f"{self.run.id}.json")

    def _sweep(self, streams: int, where: Endpoint, thinking: bool | None = None) -> Point:
        want = self.wanted
        asked = self._asked(streams, thinking)
        limit = (want.rounds + 1) * want.tokens / SLOWEST_TOK_S
        found = self._load(where, want.tokens, asked, limit)
        rows = [row.round for row in found.rounds if row.round is not None]
        self.ours += sum(row.tokens for row in rows)
        errors = [text for row in rows for text in row.errors]
        if found.error:
            errors.append(found.error)
        thoughts = thinking if thinking is not None else (False if self._thinks() else None)
        point = Point(
            streams=streams,
            tokens=want.tokens,
            thinking=thoughts,
            warm_up=rows[0].plain() if rows else None,
            rounds=tuple(row.plain() for row in rows[1:]),
            errors=tuple(dict.fromkeys(errors)),
        )
        self.keep(points=(*self.run.points, point))
        return point

    def _asked(self, streams: int, thinking: bool | None = None) -> list[list[str]]:
        """The prompts of each round, of which the first does not count."""
        mark = f"{self.run.id[-4:]}-{streams}{'t' if thinking else ''}-"
        return measure.rounds(streams, self.wanted.rounds + 1, mark)

    def _prefill(self, length: int) -> Prefill:
        before = counters(self.where)
        found = self._load(
            self.quiet, 1, [length] * PREFILL_ROUNDS, 2 * PREFILL_ROUNDS * length / SLOWEST_PREFILL
        )
        after = counters(self.where)
        hits = None
        if before.hits is not None and after.hits is not None:
            hits = round(max(0.0, after.hits - before.hits))
        self.ours += 2 * len(found.rounds)
        seen = [r for row in found.rounds for r in (row.cold, row.cached) if r is not None]
        made_of = [n for r in seen for n in r.prompt_tokens]
        row = Prefill(
            tokens=round(sum(made_of) / len(made_of)) if made_of else length,
            cold_s=_firsts([row.cold for row in found.rounds]),
            cached_s=_firsts([row.cached for row in found.rounds]),
            hits=hits,
        )
        self.keep(prefill=(*self.run.prefill, row))
        return row

    def _first_off(self, before: Counters) -> float | None:
        """By which share the rate of one stream is above what the engine's clock says of it."""
        point = self.run.points[-1]
        rows = [row for row in (point.warm_up, *point.rounds) if row is not None]
        asked = [(row.tokens, row.stream_tok_s[0]) for row in rows if row.stream_tok_s]
        return self._off(before, asked) if len(asked) == len(rows) else None

    def _off(self, before: Counters, asked: Sequence[tuple[int, float]]) -> float | None:
        """The same of answers by their tokens and rates."""
        until = time.monotonic() + COUNTED_S
        # it counts an answer just after its last token has gone out
        while (rate := decoded(before, counters(self.where), len(asked))) is None:
            if before.answers is None or time.monotonic() > until:
                return None
            gevent.sleep(0.1)
        seconds = sum((tokens - 1) / of for tokens, of in asked)
        return sum(tokens - 1 for tokens, _ in asked) / seconds / rate - 1

    def _other(self, first_off: float | None) -> str:
        """One stream again by the client that upgrade and verify use, from this machine: the same
        prompts, at once after the first.
        """
        want, before = self.wanted, counters(self.where)
        same = [prompt for asked in self._asked(1)[1:] for prompt in asked]
        try:
            rates = facts_measure.measure_by(self.quiet, same, want.tokens).each
        except NotMeasured as error:
            return f"not measured from this machine as well: {error}"
        self.ours += want.rounds * want.tokens
        off = self._off(before, [(want.tokens, rate) for rate in rates])
        name = "rigbook, from the operator's machine"
        self.keep(other=Other(client=name, rates=rates, off=off, first_off=first_off))
        return measure.words_of_other(self.run)

    def _end(self, after: Counters) -> Iterator[str]:
        rows = machines(self.plan, self.sampler.samples)
        found = doubts(
            self.run.points, rows, self.ours, made(self.before, after), self.before.busy,
            self.before.tokens,
        )  # fmt: skip
        self.keep(complete=True, doubts=found)
        told = doubts((), (), 0, 0, self.before.busy, self.before.tokens)
        yield from measure.words_of_doubts([line for line in self.run.doubts if line not in told])
        yield from measure.against_reference(self.run)
        yield f"kept as {self._path()}"
        yield measure.save_on_head(self.plan, self.run)


def _firsts(rows: Sequence[ClientRound | None]) -> tuple[float, ...]:
    return tuple(row.ttft_s[0] for row in rows if row is not None and row.ttft_s)


def benched(rig: Procedure) -> Iterator[str]:
    """The lines of a bench of what runs now; with --dry what it would measure."""
    if dry_run():
        yield "would measure the engine that runs; --dry puts no load on it"
        return
    yield from Bench(rig.plan, rig.data(BenchData)).lines()


# bench of several profiles: each is served and measured, and then what served before is back.
#
# All of it is one change, which always ends by its undo: so an interruption, an engine that does
# not
# start and a client that fails lead back the same way.

TOKEN_S = 5.0


class Interrupted(BaseException):
    """Ctrl-C while profiles are measured; nothing that only catches Exception swallows it."""


def served_as(plan: Plan, profile: str) -> Plan:
    """The same rig and recipe in another profile."""
    specs = {n.name: engine_spec(plan.rig, n, plan.recipe, profile) for n in plan.rig.nodes}
    made = {
        n.name: documents(plan.rig, n, plan.recipe, profile, specs[n.name]) for n in plan.rig.nodes
    }
    return replace(plan, profile=profile, specs=specs, documents=made)


@once_a_run
def plans(rig: Procedure) -> dict[str, Plan]:
    """The plan of each profile that --data names; DeployError for one that the recipe lacks."""
    endpoint_with_key(rig.plan)
    try:
        names = [profile_name(rig.plan.recipe, name) for name in rig.data(BenchData).profiles]
    except SpecError as error:
        raise DeployError(f"--data: profiles: {error}") from None
    return {name: served_as(rig.plan, name) for name in names}


def measure_each(rig: Procedure, wanted: dict[str, Plan], data: BenchData) -> None:
    """Serves and measures each; StepFailed when one cannot be, or at Ctrl-C."""
    with _interruptible():
        for name, plan in wanted.items():
            logger.info(f"    profile {name}")
            start = _serve_as(rig.run, plan)
            _tell(start)
            try:
                bench = Bench(plan, data)
                bench.run = bench.run.model_copy(update={"start": start})
                for line in bench.lines():
                    logger.info(f"    {line}")
            except DeployError as error:
                raise StepFailed(f"profile {name}: {error}") from None


def _tell(start: Start) -> None:
    parts = (("port", start.port_s), ("HTTP", start.http_s), ("first token", start.first_token_s))
    seen = ", ".join(f"{word} after {took:.1f} s" for word, took in parts if took is not None)
    logger.info(f"    from its start: {seen or 'nothing was seen'}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Has the first Ctrl-C end the block by StepFailed in this greenlet; the next is pyinfra's."""
    here: Any = gevent.getcurrent()
    former = signal.getsignal(signal.SIGINT)

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, former)
        here.kill(Interrupted, block=False)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    except Interrupted:
        raise StepFailed("interrupted by Ctrl-C; what was measured is kept") from None
    finally:
        signal.signal(signal.SIGINT, former)


def _serve_as(run: Run, plan: Plan) -> Start:
    """Stops the engine, writes the plan's files, starts it; gives how long the start took.

    StepFailed without an answer.
    """
    head, workers = plan.rig.head.name, [node.name for node in plan.rig.workers]
    looks = observe(real(state), plan, fresh=True)
    run.announce()
    for node in (head, *workers):
        run.apply(node, [unit_step(UNIT, "stop", reload=False)], engine.UNIT_TIMEOUT_S)
    for node in (*workers, head):
        seen = looks[node]
        if not isinstance(seen, NodeSnapshot):
            raise StepFailed(f"{node}: {seen.unreadable}")
        steps = engine.file_steps(plan.documents[node], files_in(seen))
        if steps:
            run.apply(node, steps + engine.unit_steps(engine_unit(seen), True))
    where = endpoint_with_key(plan)
    watch = StartTimes(where)
    try:
        for node in (*workers, head):
            run.apply(node, [unit_step(UNIT, "start", reload=False)], engine.UNIT_TIMEOUT_S)
        budget = plan.recipe.expect.start_budget_s
        wait_for_answer(real(state), head, [head, *workers], where, budget)
        watch.held_by_ours()
        until = time.monotonic() + TOKEN_S
        # the watch may be one question behind
        while watch.found.http_s and not watch.found.first_token_s and time.monotonic() < until:
            gevent.sleep(0.1)
    finally:
        found = watch.stop()
    return found
