"""What a report is made from: a rig with findings, changes, backups, benches and a soak."""

from __future__ import annotations

from collections.abc import Sequence

from deploys.plans.measure import Run
from deploys.plans.report import Look
from gates.core import CODES, Violation
from gates.doctor import Finding, explain, strips
from schema.artifact import BackupRow, Backups, Versions
from schema.measure import (
    Acceptance,
    BenchRun,
    Machine,
    Point,
    Prefill,
    Round,
    Sample,
    SoakRun,
    Subject,
)
from schema.snapshot import ChangeSummary, NodeSnapshot, Unreadable
from tests.unit.builders.host_parts import BOOT, NOW, gpu
from tests.unit.builders.rigs import put, serving, spark_plan

# Measurements as they are kept.

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


def measured_bench(
    name: str, rates: tuple[float, ...], streams: int = 1, argv: tuple[str, ...] = SUBJECT.argv
) -> BenchRun:
    """A whole bench of one point."""
    return BenchRun(
        id=name, began="2026-11-01T08:00:00Z", seconds=60, complete=True,
        client="vllm bench serve 0.32.0", operator="milo@forge",
        subject=SUBJECT.model_copy(update={"argv": argv}), cold=False,
        points=(point(rates, streams),),
    )  # fmt: skip


# What somebody may write into an inventory, and a host into its log.
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>&\"'"
GIB = 1 << 30


def change(number: int, status: str, reason: str | None = None) -> ChangeSummary:
    """A change, `number` hours old."""
    return ChangeSummary(
        id=f"202611{number:02}T100000Z-serve-{number:04x}", deploy="serve", status=status,
        opened_unix_s=NOW - 3600 * number, closed_unix_s=NOW - 3600 * number + 60,
        operator="milo@forge", boot_id=BOOT, steps=("file", "unit"), reason=reason,
    )  # fmt: skip


def finding(code: str, node: str | None, summary: str, unknown: bool = False) -> Violation:
    """A finding of this code."""
    row = CODES[code]
    return Violation(code, row.layer, row.severity, summary, f"evidence of {code}",
                     "pyinfra INVENTORY deploys/serve.py", node, unknown)  # fmt: skip


def observed() -> dict[str, NodeSnapshot | Unreadable]:
    """spark1 and spark2 that serve, a GPU each, another kernel on spark2, and three changes."""
    seen = serving(spark_plan())
    for name in seen:
        rows = (change(1, "COMMITTED"), change(2, "ROLLED_BACK", f"no answer; {HOSTILE}"),
                change(30, "COMMITTED"))  # fmt: skip
        seen[name] = put(seen[name], "journal.changes", rows)
        seen[name] = put(seen[name], "health.gpus", (gpu(name="NVIDIA GB10"),))
    seen["spark2"] = put(seen["spark2"], "identity.kernel", "6.17.0-1008-nvidia")
    return {**seen}


def samples(count: int, start: float = 9.0) -> tuple[Sample, ...]:
    """A node's samples, 5 s apart: memory that goes down a little, and a GPU at work."""
    return tuple(
        Sample(at_s=5.0 * n, available=round((start - n / 400) * GIB), page_cache=GIB, shmem=0,
               gpus=(gpu(power_w=100 + n % 7),), vram=12 * GIB)
        for n in range(count)
    )  # fmt: skip


def bench(number: int, profile: str | None, rate: float, **changes: object) -> BenchRun:
    """A whole bench of a profile of deepseek-v4-flash, of the hour `number`."""
    spread = (-0.2, 0.1, 0.0, 0.3, -0.1)
    points = tuple(
        point(tuple(rate * n**0.8 + off for off in spread), streams=n) for n in (1, 2, 4, 8, 16)
    )
    points = tuple(
        row.model_copy(update={"rounds": tuple(
            r.model_copy(update={"itl_p50_s": row.streams**0.2 / rate,
                                 "itl_p95_s": row.streams**0.3 / rate,
                                 "ttft_s": (6 / rate, 7 / rate) * row.streams})
            for r in row.rounds)})
        for row in points
    )  # fmt: skip
    return BenchRun(
        id=f"202611{number:02}T080000Z-bench-{number:04x}",
        began=f"2026-11-{number:02}T08:00:00Z", seconds=600, complete=True,
        client="vllm bench serve 0.32.0", operator="milo@forge",
        subject=SUBJECT.model_copy(update={"recipe": "deepseek-v4-flash", "profile": profile,
                                           "rig": "spark"}),
        cold=False, points=points,
        prefill=(Prefill(tokens=2048, cold_s=(6.4, 6.5), cached_s=(0.3, 0.3), hits=4000),),
        acceptance=Acceptance(drafts=1000, draft_tokens=3000, accepted=1356,
                              per_position=(808, 471, round(rate))),
        machines=tuple(Machine(node=name, samples=samples(40)) for name in ("spark1", "spark2")),
    ).model_copy(update=changes)  # fmt: skip


def soak(number: int) -> SoakRun:
    """A soak of an hour."""
    return SoakRun(
        id=f"202611{number:02}T200000Z-soak-{number:04x}", began=f"2026-11-{number:02}T20:00:00Z",
        asked_s=3600, seconds=3600, complete=True, operator="milo@forge",
        subject=SUBJECT.model_copy(update={"recipe": "deepseek-v4-flash", "rig": "spark"}),
        streams=8, completed=600, tokens=300000, slowest_s=62.0,
        doubts=("GPU 00000000:01:00.0 of spark1 was throttled in 12 of 720 samples",),
        machines=(Machine(node="spark1", samples=samples(720)),
                  Machine(node="spark2", samples=samples(720, 20.0))),
    )  # fmt: skip


def runs() -> list[Run]:
    """Newest first: a soak, benches of three profiles, one of which was cut off."""
    return [
        soak(23),
        bench(22, "latency", 71.0, complete=False),
        bench(21, "throughput", 52.0),
        bench(20, "balanced", 60.4),
        bench(19, "balanced", 60.3),
        bench(18, HOSTILE, 12.0),
    ]


def backup(age_s: int) -> BackupRow:
    """A backup that was verified."""
    return BackupRow(
        id="20261120T100000Z-backup-1a2b", usable=True, problem=None, verified_unix_s=NOW,
        tree="/opt/vllm/current", age_s=age_s, bytes=9 * GIB,
        versions=Versions(vllm="0.32.0", torch="2.13.0", cuda="13.0"),
    )  # fmt: skip


def look(
    kept: Sequence[Run], found: Sequence[Violation], lost: str | None = None, probed: bool = True
) -> Look:
    """One look at spark1 and spark2; `lost` did not answer."""
    plan, seen = spark_plan(), observed()
    if lost is not None:
        seen[lost] = Unreadable(unreadable="no ssh connection")
    findings: list[Finding] = explain(found, {"spark1": 0, "spark2": 1})
    none = Backups(backups=(), partial=(), working=(), displaced=())
    return Look(
        at="2026-11-23 21:00 UTC",
        plan=plan,
        observed=seen,
        strips=strips(plan, seen, findings, probed),
        findings=findings,
        remedy=lambda one: one.remedy,
        backups={"spark1": none.model_copy(update={"backups": (backup(3 * 86400),)}),
                 "spark2": none},
        runs=kept,
    )  # fmt: skip
