"""What bench and soak share: prompts, samples, words, history."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import gevent
from pydantic import Field, TypeAdapter, ValidationError
from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.plans.cli import ROOT
from deploys.plans.verify import running_profile
from facts.node import AskFailed, Looks, ask_node, look_at_engine, observe, real
from gates.processes import compare_vllm_flags
from gates.recipe import written_argv
from operations.run import StepFailed, call
from schema.core import misfit
from schema.measure import (
    Acceptance,
    BenchRun,
    Machine,
    Point,
    Prefill,
    Sample,
    SoakRun,
    Subject,
    compare_statistics,
    mean_interval,
    quantile,
)
from schema.plan import Plan
from schema.snapshot import NodeSnapshot, Unreadable

# What an engine is asked while it is measured: short, medium and long tasks of one kind of user.
#
# Text with sense, since drafts of random words are accepted at another rate.

# What an answer of each may have at most, in tokens; those of the third seed's portfolio.
SHORT, MEDIUM, LONG = 256, 600, 800
# A task, its mark and the chat's template: 120 tokens by a tokenizer of 512 words, fewer by others.
PROMPT_TOKENS = 160
TASKS = (
    (SHORT, "Explain in about 200 words how a hash table finds a key."),
    (MEDIUM, "Review this function, line by line, and write a better one: "
             "def mean(xs): s = 0; [s := s + x for x in xs]; return s / len(xs)"),
    (LONG, "Write a detailed guide to how a Linux host boots, from firmware to login."),
    (SHORT, "Explain in about 200 words why the sky is blue."),
    (MEDIUM, "Write a Python class for a queue with a limit, its tests, and the reasons for each."),
    (LONG, "Describe in depth how TCP recovers from loss, with an example for each mechanism."),
    (SHORT, "Explain in about 200 words what a page cache is for."),
    (MEDIUM, "Review this query for speed and say what you would change: "
             "SELECT * FROM a, b WHERE a.id = b.a OR a.name LIKE '%x%' ORDER BY b.at"),
)  # fmt: skip


def prompt(number: int, mark: str, longest: int | None = None) -> tuple[int, str]:
    """The task of this number, in turn, and how many tokens its answer may have: no more than an
    engine leaves whose `longest` is that of prompt and answer.

    `mark` and the number come first, so that none is answered from the prefix cache.
    """
    tokens, text = TASKS[number % len(TASKS)]
    if longest is not None:
        tokens = max(1, min(tokens, longest - PROMPT_TOKENS))
    return tokens, f"({mark}{number}) {text}"


def rounds(streams: int, count: int, mark: str) -> list[list[str]]:
    """The prompts of `count` rounds of `streams` answers each: no two alike."""
    return [
        [prompt(number * streams + stream, mark)[1] for stream in range(streams)]
        for number in range(count)
    ]


# What the nodes have of memory, clocks, power and heat while something else is under way.

EVERY_S = 5.0
ASK_S = 20


class Sampler:
    """Samples of all nodes, by name, since `began` (of time.monotonic)."""

    def __init__(self, plan: Plan) -> None:
        self.began = time.monotonic()
        self.samples: dict[str, list[Sample]] = {node.name: [] for node in plan.rig.nodes}
        self._state = real(state)

    def look(self) -> None:
        """Takes one sample of each node, all at the same time."""
        gevent.joinall([gevent.spawn(self._one, name) for name in self.samples])

    def _one(self, name: str) -> None:
        at_s = time.monotonic() - self.began
        found: dict[str, Any]
        try:
            host = self._state.inventory.get_host(name)
            found = ask_node(self._state, host, "measure sample", {}, ASK_S)
            sample = Sample(at_s=at_s, **found)
        except AskFailed as error:
            sample = Sample(at_s=at_s, problem=str(error))
        except ValidationError as error:
            sample = Sample(at_s=at_s, problem=f"the host's sample {misfit(error)}")
        self.samples[name].append(sample)

    def _go_on(self) -> None:
        while True:
            started = time.monotonic()
            self.look()
            gevent.sleep(max(0.0, EVERY_S - (time.monotonic() - started)))

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Takes a sample every EVERY_S seconds while the block runs."""
        job = gevent.spawn(self._go_on)
        try:
            yield
        finally:
            job.kill()


# What is measured: the engine that runs, and the nodes that it runs on.

# vLLM's own, where the command line does not say.
MAX_NUM_SEQS = 256


def subject(plan: Plan) -> tuple[Subject, str]:
    """What runs now, and a line about its profile; DeployError when the head cannot tell."""
    profile, words = running_profile(plan)
    head = plan.rig.head.name
    seen = look_at_engine(real(state), (head,))[head]
    argv = written_argv(seen) if isinstance(seen, NodeSnapshot) else ()
    looks = observe(real(state), plan)
    recipe = json.dumps(plan.recipe.model_dump(mode="json"), sort_keys=True)
    made = Subject(
        rig=plan.rig.name,
        recipe=plan.recipe.name,
        recipe_sha256=hashlib.sha256(recipe.encode()).hexdigest(),
        profile=profile,
        model=plan.recipe.served_model_name,
        argv=argv,
        image=_image(plan, looks.get(head)),
    )
    return made, words


def _image(plan: Plan, seen: NodeSnapshot | Unreadable | None) -> str | None:
    """The image's digest, or its id where no registry gave it one; None for a venv."""
    box = plan.recipe.container
    if box is None or not isinstance(seen, NodeSnapshot) or isinstance(seen.docker, Unreadable):
        return None
    for image in seen.docker.images:
        if box.image in (*image.tags, *image.digests) or len(seen.docker.images) == 1:
            return image.digests[0] if image.digests else image.id
    return box.image


def machines(plan: Plan, samples: Mapping[str, list[Sample]]) -> tuple[Machine, ...]:
    """The nodes with what was seen of them."""
    looks: Looks = observe(real(state), plan)
    made = []
    for node in plan.rig.nodes:
        seen = looks.get(node.name)
        kernel = driver = None
        if isinstance(seen, NodeSnapshot):
            kernel = seen.identity.kernel
            driver = None if isinstance(seen.gpus, Unreadable) else seen.gpus.driver_version
        rows = tuple(samples.get(node.name, ()))
        made.append(Machine(node=node.name, kernel=kernel, driver=driver, samples=rows))
    return tuple(made)


def flag(argv: tuple[str, ...], name: str) -> str | None:
    """The value of a flag of the command line; None where it does not stand there."""
    return next((value for word, value in pairwise(argv) if word == name), None)


def most_streams(argv: tuple[str, ...]) -> int:
    """How many answers the engine makes at the same time."""
    return _number(argv, "--max-num-seqs") or MAX_NUM_SEQS


def longest(argv: tuple[str, ...]) -> int | None:
    """The longest prompt with its answer, in tokens; None: not told by a plain number."""
    return _number(argv, "--max-model-len")


def _number(argv: tuple[str, ...], name: str) -> int | None:
    text = flag(argv, name)
    return int(text) if text is not None and text.isdigit() else None


# What is said of a measurement, a line each. Pure.

# Two clients of one engine are to agree within so much.
AGREE = 0.03


def words_of_point(row: Point) -> str:
    """Rates of all streams and of one, and the waits."""
    if not row.rates:
        why = row.errors[0] if row.errors else "no answer"
        return f"{row.name}: not measured: {why}"
    all_ = mean_interval(row.rates)
    good = [r for r in row.rounds if not r.failed]
    each = [rate for r in good for rate in r.stream_tok_s]
    firsts = [wait for r in good for wait in r.ttft_s]
    gaps = [r.itl_p50_s for r in good if r.itl_p50_s is not None]
    late = [r.itl_p95_s for r in good if r.itl_p95_s is not None]
    parts = [f"{all_.value:.1f} tok/s ({all_.low:.1f} to {all_.high:.1f}, {len(good)} rounds)"]
    if each:
        parts.append(f"{median(each):.1f} a stream")
    if firsts:
        parts.append(f"first token {_ms(quantile(firsts, 0.5))}, p95 {_ms(quantile(firsts, 0.95))}")
    if gaps and late:
        parts.append(f"between tokens {_ms(median(gaps))}, p95 {_ms(median(late))}")
    if row.failed:
        parts.append(f"{row.failed} answers failed")
    if row.warm_up and row.warm_up.tokens_per_s:
        parts.append(f"the round before {row.warm_up.tokens_per_s:.1f}")
    return f"{row.name}: {'; '.join(parts)}"


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def words_of_prefill(row: Prefill) -> str:
    """Cold and cached prefill of one length."""
    if row.cold_tok_s is None:
        return f"prefill of {row.tokens} tokens: not measured"
    text = f"prefill of {row.tokens} tokens: {row.cold_tok_s:.0f} tok/s"
    if row.cached_tok_s is None:
        return f"{text}; the prefix cache found nothing of it the second time"
    times = row.cached_tok_s / row.cold_tok_s
    return f"{text}, {row.cached_tok_s:.0f} when it is cached ({times:.1f} times)"


def acceptance(row: Acceptance) -> str:
    """Speculative decoding: which share is meant stands beside each."""
    if not row.drafts or row.rate is None or row.length is None:
        return "speculative decoding is on, and nothing was drafted"
    plain = ", ".join(f"{share:.1%}" for share in row.unconditional)
    given = ", ".join(f"{share:.1%}" for share in row.conditional)
    return (
        f"accepted {row.rate:.1%} of the drafted tokens, {row.length:.2f} tokens a step; by "
        f"position {plain} of all drafts; {given} where the one before was accepted"
    )


def words_of_other(run: BenchRun) -> str:
    """What another client measured of one stream, against this one."""
    if run.other is None or not run.other.rates:
        return "not measured by another client"
    found = run.other
    theirs = f"1 stream by {found.client}: {fmean(found.rates):.1f} tok/s"
    if found.off is None or found.first_off is None:
        return f"{theirs}; no count of the engine's own to compare the clients by"
    apart = abs((1 + found.off) / (1 + found.first_off) - 1)
    return (
        f"{theirs}, {found.off:+.1%} of the engine's own count of these answers; {run.client}: "
        f"{found.first_off:+.1%}; they {'agree' if apart <= AGREE else 'do NOT agree'}"
    )


def words_of_doubts(found: Sequence[str]) -> Iterator[str]:
    """What speaks against the figures."""
    for line in found:
        yield f"DOUBT: {line}"


def against_reference(run: BenchRun) -> Iterator[str]:
    """The recipe's published figures beside ours, where they are of the same concurrency."""
    for row in run.reference:
        ours = next(
            (p for p in run.points if p.streams == row["concurrency"] and not p.thinking), None
        )
        if ours is None or not ours.rates:
            continue
        published, rate = float(str(row["tokens_per_s"])), fmean(ours.rates)
        length = "" if row["tokens"] == ours.tokens else f", with {row['tokens']} tokens an answer"
        yield (
            f"{ours.name}: {rate:.1f} tok/s; published {published:.1f}{length} "
            f"({rate / published - 1:+.0%}), a reference and no measurement of this rig"
        )


def words_compared(a: BenchRun, b: BenchRun) -> Iterator[str]:
    """Whether B is better or worse than A, part by part."""
    yield f"A {title(a)}"
    yield f"B {title(b)}"
    for name, run in (("A", a), ("B", b)):
        if not run.complete:
            yield f"DOUBT: {name} was cut off: what it holds is compared"
        for line in run.doubts:
            yield f"DOUBT: {name}: {line}"
    yield from _unlike(a, b)
    matched = 0
    for before in a.points:
        key = (before.streams, before.tokens, before.thinking)
        after = next((p for p in b.points if (p.streams, p.tokens, p.thinking) == key), None)
        if after is not None:
            matched += 1
            yield f"{before.name}: {_judged(before.rates, after.rates)}"
    if not matched:
        yield "nothing to compare: no concurrency, with the same tokens, is in both"


def _judged(before: Sequence[float], after: Sequence[float]) -> str:
    found = compare_statistics(before, after)
    rates = " -> ".join(f"{fmean(rates):.1f}" if rates else "none" for rates in (before, after))
    if found.share is None:
        return f"{found.word}: {rates} tok/s, {len(before)} and {len(after)} rounds"
    share = found.share
    return (
        f"{found.word}: {rates} tok/s ({share.value:+.1%}, {share.low:+.1%} to {share.high:+.1%})"
    )


def title(run: BenchRun) -> str:
    """Which run it is."""
    warm = {True: ", cold", False: ", warm", None: ""}[run.cold]
    what = run.subject
    return f"{run.id}: {what.recipe} ({what.profile or 'no profile of it'}){warm}, {run.client}"


def _unlike(a: BenchRun, b: BenchRun) -> Iterator[str]:
    """What differs between the two beside their figures."""
    for word, left, right in (
        ("recipe", a.subject.recipe, b.subject.recipe),
        ("image", a.subject.image, b.subject.image),
        ("client", a.client, b.client),
        ("driver", _of(a, "driver"), _of(b, "driver")),
        ("kernel", _of(a, "kernel"), _of(b, "kernel")),
    ):
        if left != right:
            yield f"{word} differs: {left or 'unknown'} -> {right or 'unknown'}"
    if not ("serve" in a.subject.argv and "serve" in b.subject.argv):
        return
    for flag, left, right in compare_vllm_flags(a.subject.argv, b.subject.argv):
        yield f"the command line differs: {flag} {left} -> {right}"


def _of(run: BenchRun, key: str) -> str:
    return ", ".join(dict.fromkeys(str(getattr(machine, key)) for machine in run.machines))


# The measurements that were kept: a folder of JSON files on this machine, and a copy on the head.
#
# `measurements/RIG/ID.json`, written anew after each part: what was measured stays, whatever ends
# the
# run.

Run = BenchRun | SoakRun
_RUN: TypeAdapter[Run] = TypeAdapter(Annotated[Run, Field(discriminator="kind")])
# The folder on this machine; git ignores it.
HISTORY = ROOT / "measurements"
# Another folder, for tests.
VARIABLE = "RIGBOOK_MEASUREMENTS"
_LAST = "last"
# Of a node, in the head's copy: an hour of them.
MOST_SAMPLES = 720


def history_folder(rig: str) -> Path:
    """The folder of a rig's measurements."""
    return Path(os.environ.get(VARIABLE) or HISTORY) / rig


def new_id(kind: str) -> str:
    """A measurement's id: UTC time, kind, and four hex digits so that two never share one."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{kind}-{uuid.uuid4().hex[:4]}"


def save_run(run: BenchRun | SoakRun) -> Path:
    """Writes a run into the folder, over what it held of it before; gives the path."""
    path = history_folder(run.subject.rig) / f"{run.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(run.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def save_on_head(plan: Plan, run: BenchRun | SoakRun) -> str:
    """Writes it on the rig's head as well, of many samples some; a line about where, or why not."""
    here, head = real(state), plan.rig.head.name
    document = json.loads(run.model_dump_json(exclude_none=True))
    for machine in document["machines"]:
        rows = machine["samples"]
        machine["samples"] = rows[:: 1 + len(rows) // MOST_SAMPLES]
    try:
        found = call(
            here, here.inventory.get_host(head), "measure keep",
            {"id": run.id, "document": document},
        )  # fmt: skip
    except StepFailed as error:
        return f"not kept on the head: {error}"
    return f"kept on {head} as {found['path']}"


def ids(rig: str, kind: str) -> list[str]:
    """The ids of a rig's measurements of this kind, newest first."""
    found = (path.stem for path in history_folder(rig).glob(f"*-{kind}-*.json"))
    return sorted(found, reverse=True)


def kept_runs(rig: str) -> tuple[list[Run], list[str]]:
    """A rig's measurements, newest first, and a line for each file that is none of ours."""
    found: list[Run] = []
    bad = []
    for path in sorted(
        history_folder(rig).glob("*.json"), key=lambda path: path.stem, reverse=True
    ):
        try:
            found.append(_RUN.validate_json(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            bad.append(f"{path.name}: the document {misfit(error)}")
        except (OSError, UnicodeDecodeError) as error:
            bad.append(f"{path.name}: {error}")
    return found, bad


def _benches(rig: str) -> Iterator[BenchRun]:
    """Those that can be read, newest first."""
    for name in ids(rig, "bench"):
        with suppress(DeployError):
            yield last_bench(rig, name)


def last_bench(rig: str, name: str) -> BenchRun:
    """A bench of this rig by its id, the beginning of one, or `last`; DeployError when there is
    none, or when its file is none of ours.
    """
    known = ids(rig, "bench")
    matching = known[:1] if name == _LAST else [one for one in known if one.startswith(name)]
    if name in known:
        matching = [name]
    if not known:
        raise DeployError(
            f"no bench of rig {rig} is kept in {history_folder(rig)}; make one: "
            "pyinfra INVENTORY deploys/bench.py -y"
        )
    if len(matching) != 1:
        some = ", ".join(known[:5])
        why = f"begins {len(matching)} ids" if matching else "is no bench of this rig"
        raise DeployError(f"{name} {why}; there are: {some}")
    path = history_folder(rig) / f"{matching[0]}.json"
    try:
        return BenchRun.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise DeployError(f"{path}: the document {misfit(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"{path}: {error}") from None


def last_rates(plan: Plan, profile: str) -> tuple[float, ...]:
    """The rates of one stream in the newest whole bench of this recipe and of `profile`, which
    runs, by the client that upgrade and rollback use as well; empty where there is none.
    """
    for run in _benches(plan.rig.name):
        same = (run.subject.recipe, run.subject.profile) == (plan.recipe.name, profile)
        if same and run.complete and run.other is not None and run.other.rates:
            return run.other.rates
    return ()
