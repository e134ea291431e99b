"""What is said of a measurement, a line each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from gates.engine.vllm_flags import compare as flags_that_differ
from schema.measure.run import Acceptance, BenchRun, Point, Prefill
from schema.measure.statistics import compare, mean_interval, quantile

# Two clients of one engine are to agree within so much.
AGREE = 0.03


def point(row: Point) -> str:
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


def prefill(row: Prefill) -> str:
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


def other(run: BenchRun) -> str:
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


def doubts(found: Sequence[str]) -> Iterator[str]:
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


def compared(a: BenchRun, b: BenchRun) -> Iterator[str]:
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
    found = compare(before, after)
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
    for flag, left, right in flags_that_differ(a.subject.argv, b.subject.argv):
        yield f"the command line differs: {flag} {left} -> {right}"


def _of(run: BenchRun, key: str) -> str:
    return ", ".join(dict.fromkeys(str(getattr(machine, key)) for machine in run.machines))
