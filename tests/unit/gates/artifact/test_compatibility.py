"""The table of what works where, and the gate that reads it before an upgrade."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gates.artifact.compatibility import RigFacts, compatibility, judge
from gates.core.waiver import apply_waivers, blocking
from schema.core.errors import SpecError
from schema.core.parse import build
from schema.desired.plan import Plan
from schema.observed.machine import Gpus
from schema.observed.snapshot import Unreadable
from schema.recipe.compatibility import CompatibilityTable, load_table
from tests.unit.builders.snapshots import healthy, put
from tests.unit.builders.spark_rig import ROOT, spark_plan

TABLE = load_table(ROOT)
# The tower of the second seed: two RTX 5060 Ti, TP 2, one machine.
TOWER = RigFacts("tower", ("sm_120",), 2, 1, "580.126.09", "6.17.0-22-generic")


def entry(**changes: object) -> dict[str, object]:
    """An entry as the file has it."""
    return {
        "id": "one",
        "engine": "vllm",
        "versions": "==0.20.*",
        "gpu": ["sm_120"],
        "verdict": "broken",
        "reason": "dies",
        "source": "somebody",
        "date": "2026-05-10",
        **changes,
    }


def table(*entries: dict[str, object]) -> CompatibilityTable:
    """A table as it is loaded."""
    return build(CompatibilityTable, {"entries": list(entries)}, lambda key: "t.yaml")


def rig(tensor_parallel: int = 2) -> Plan:
    """The two Sparks; only their GPU is said to be another one by `seen`."""
    plan = spark_plan()
    for spec in plan.specs.values():
        spec.flags["tensor_parallel_size"] = tensor_parallel
    return plan


def seen(plan: Plan, cap: str | None = "12.0") -> dict[str, Any]:
    """Healthy nodes whose GPUs have this compute capability."""
    return {name: put(shot, "gpus.gpus.0.compute_cap", cap) for name, shot in healthy(plan).items()}


@pytest.mark.parametrize(
    "version", ["0.20.0", "0.20.2", "0.20.2rc1", "0.20.2+cu130", "0.20.9.dev3"]
)
def test_the_seeds_upgrade_is_known_to_be_broken(version: str) -> None:
    """B1: every 0.20.x on SM_120 with more than one rank."""
    judged = judge(version, TOWER, TABLE)
    assert judged.verdict == "broken" and judged.entry and judged.entry.id == "sm120-tp-0.20"
    assert str(judged.entry.date) == "2026-05-10"


@pytest.mark.parametrize(
    ("version", "facts", "verdict"),
    [
        ("0.28.0", TOWER, "works"),
        ("0.19.2rc1", TOWER, "works"),
        ("0.19.2rc1.dev134+gfe9c3d6c5", TOWER, "works"),
        ("0.19.2rc2.dev1", TOWER, "unknown"),
        ("0.21.0", TOWER, "unknown"),
        ("0.21.0rc1", TOWER, "unknown"),
        ("0.20.2", RigFacts("t", ("sm_120",), 1, 1, None, "6.1.0"), "unknown"),
        ("0.20.2", RigFacts("t", ("sm_90",), 2, 1, None, "6.1.0"), "unknown"),
        # PEP 440: a pin without a local part takes any local part.
        ("0.32.0+cpu", RigFacts("t", ("cpu",), 2, 2, None, "6.1.0-13-amd64"), "works"),
        ("0.32.0", RigFacts("t", ("cpu",), 2, 2, None, "6.1.0-13-amd64"), "works"),
    ],
)
def test_what_the_catalog_says(version: str, facts: RigFacts, verdict: str) -> None:
    """Each condition counts; what nobody reported is unknown."""
    assert judge(version, facts, TABLE).verdict == verdict


def test_broken_blocks_and_names_source_and_date() -> None:
    plan = rig()
    found = compatibility("0.20.2", plan, seen(plan), TABLE)
    assert [(v.code, v.severity, v.node) for v in found] == [
        ("version-broken", "block", "spark1"),
        ("version-broken", "block", "spark2"),
    ]
    assert "NCCL" in found[0].summary
    assert "localfamo.us" in found[0].evidence and "2026-05-10" in found[0].evidence
    assert "sm_120, TP 2" in found[0].evidence


def test_broken_can_be_waived_with_a_reason_only() -> None:
    plan = rig()
    found = compatibility("0.20.2", plan, seen(plan), TABLE)
    left, waived = apply_waivers(found, ("version-broken",), "the vendor sent a fixed build")
    assert left == [] and waived == found
    with pytest.raises(SpecError, match="needs --data reason"):
        apply_waivers(found, ("version-broken",), None)


def test_unknown_warns_and_tells_the_last_word() -> None:
    plan = rig()
    found = compatibility("0.21.0", plan, seen(plan), TABLE)
    assert {(v.code, v.severity) for v in found} == {("version-unknown", "warn")}
    assert blocking(found) == []
    assert "has no entry" in found[0].summary and "sm120-tp2-0.28" in found[0].evidence


def test_what_works_is_no_finding() -> None:
    plan = rig()
    assert compatibility("0.28.1", plan, seen(plan), TABLE) == []


def test_a_gpu_that_does_not_say_what_it_is_blocks_where_broken_is_possible() -> None:
    """P5: what cannot be ruled out counts."""
    plan = rig()
    silent = {n: put(s, "gpus", Unreadable(unreadable="nvidia-smi hangs")) for n, s in
              healthy(plan).items()}  # fmt: skip
    for observed in (seen(plan, None), silent):
        found = compatibility("0.20.2", plan, observed, TABLE)
        assert {(v.code, v.severity, v.unknown) for v in found} == {
            ("version-broken", "block", True)
        }
        assert compatibility("0.19.0", plan, observed, TABLE)[0].code == "version-unknown"


def test_a_rig_without_gpus_is_not_asked_for_one() -> None:
    plan = spark_plan(recipe="tiny", profile="balanced")
    none = Gpus(stand_in=True, driver_version="", gpus=(), processes=())
    observed = {n: put(s, "gpus", none) for n, s in healthy(plan).items()}
    assert compatibility("0.32.0", plan, observed, TABLE) == []
    assert compatibility("0.20.2", plan, observed, TABLE)[0].code == "version-unknown"


def test_the_more_specific_entry_wins_whatever_its_date() -> None:
    rows = table(
        entry(),
        entry(id="two", tensor_parallel="==2", verdict="works", date="2026-05-01"),
    )
    assert judge("0.20.2", TOWER, rows).verdict == "works"
    assert judge("0.20.2", RigFacts("t", ("sm_120",), 4, 1, None, "6"), rows).verdict == "broken"


def test_of_equal_entries_the_later_one_wins() -> None:
    later = entry(id="two", versions=">=0.20,<0.21", verdict="works", date="2026-06-01")
    for rows in (table(entry(), later), table(later, entry())):
        assert judge("0.20.2", TOWER, rows).verdict == "works"


def test_a_pinned_version_is_more_specific() -> None:
    rows = table(entry(), entry(id="two", versions="==0.20.3", verdict="works", date="2026-05-01"))
    assert judge("0.20.3", TOWER, rows).verdict == "works"
    assert judge("0.20.2", TOWER, rows).verdict == "broken"


@pytest.mark.parametrize(
    ("condition", "facts", "holds"),
    [
        ({"driver": "<580.142"}, TOWER, True),
        ({"driver": ">=580.142"}, TOWER, False),
        ({"kernel": ">=6.17.0-23"}, TOWER, False),
        ({"kernel": "<=6.17.0-22"}, TOWER, True),
        ({"nodes": ">1"}, TOWER, False),
        ({"nodes": "==1"}, TOWER, True),
        ({"gpu": []}, TOWER, True),
    ],
)
def test_every_condition_is_compared(
    condition: dict[str, object], facts: RigFacts, holds: bool
) -> None:
    rows = table(entry(**condition))
    assert judge("0.20.2", facts, rows).verdict == ("broken" if holds else "unknown")


def test_an_entry_that_cannot_be_ruled_out_is_a_doubt_unless_a_better_one_holds() -> None:
    unknown_driver = RigFacts("t", ("sm_120",), 2, 1, None, "6.17.0-22-generic")
    rows = table(entry(driver="<590"))
    assert judge("0.20.2", unknown_driver, rows).doubts == rows.entries
    better = entry(id="two", tensor_parallel="==2", nodes="==1", verdict="works")
    assert judge("0.20.2", unknown_driver, table(entry(driver="<590"), better)).doubts == ()


def test_contradicting_entries_are_an_error_of_the_file() -> None:
    with pytest.raises(SpecError) as caught:
        table(entry(), entry(id="two", versions=">=0.20.1,<0.22", verdict="works"))
    (line,) = caught.value.problems
    assert "one says broken and two says works for the same case" in line
    assert "allowed: a later date, or one more condition" in line


@pytest.mark.parametrize(
    "other",
    [
        {"versions": "==0.21.*"},
        {"versions": "<0.20"},
        {"gpu": ["sm_90"]},
        {"date": "2026-05-11"},
        {"tensor_parallel": ">1"},
        {"verdict": "broken"},
        {"engine": "sglang"},
    ],
)
def test_what_cannot_meet_does_not_contradict(other: dict[str, object]) -> None:
    table(entry(), entry(**{"id": "two", "verdict": "works", **other}))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"versions": "0.20"}, "is not a range of versions"),
        ({"versions": ""}, "is not a range of versions"),
        ({"gpu": ["SM_120"]}, "is not an architecture"),
        ({"verdict": "fine"}, "allowed: 'works', 'broken' or 'unknown'"),
        ({"date": "May 10"}, "date"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"reason": "a\nb"}, "newline"),
        ({"source": ""}, "source"),
        ({"id": "-x"}, "is not a plain name"),
    ],
)
def test_a_wrong_entry_is_one_clear_line(changes: dict[str, object], part: str) -> None:
    with pytest.raises(SpecError) as caught:
        table(entry(**changes))
    assert part in str(caught.value) and str(caught.value).startswith("t.yaml: ")


def test_an_id_stands_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="stands twice"):
        table(entry(), entry(verdict="works", date="2026-07-01"))
    with pytest.raises(SpecError, match="is not there"):
        load_table(tmp_path)
