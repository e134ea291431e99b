"""Measurements as they are kept."""

from __future__ import annotations

from schema.measure.run import BenchRun, Point, Round, Subject

SUBJECT = Subject(
    rig="lab", recipe="tiny", recipe_sha256="0" * 64, profile="balanced", model="tiny",
    argv=("vllm", "serve", "m"), image="tiny@sha256:1",
)  # fmt: skip


def point(rates: tuple[float, ...], streams: int = 1, tokens: int = 256) -> Point:
    """A point whose rounds have these rates."""
    each = tuple(rate / streams for rate in rates)
    return Point(
        streams=streams,
        tokens=tokens,
        rounds=tuple(
            Round(seconds=streams * tokens / rate, tokens=streams * tokens, ttft_s=(0.1,) * streams,
                  stream_tok_s=(one,) * streams)
            for rate, one in zip(rates, each, strict=True)
        ),
    )  # fmt: skip


def bench(
    name: str, rates: tuple[float, ...], streams: int = 1, argv: tuple[str, ...] = SUBJECT.argv
) -> BenchRun:
    """A whole bench of one point."""
    return BenchRun(
        id=name, began="2026-11-01T08:00:00Z", seconds=60, complete=True,
        client="vllm bench serve 0.32.0", operator="milo@forge",
        subject=SUBJECT.model_copy(update={"argv": argv}), cold=False,
        points=(point(rates, streams),),
    )  # fmt: skip
