"""What rigbook keeps: a line a node, and a warning with the command where it is much."""

from __future__ import annotations

import pytest

from gates.host import growth
from schema.observed.files import Growth, Kept, What
from schema.observed.snapshot import Unreadable
from tests.unit.builders.snapshots import healthy
from tests.unit.builders.spark_rig import spark_plan

GIB = 1 << 30


def kept(what: What, size: int, why: str | None = None) -> Growth:
    """One kind of that many bytes."""
    return Growth(rows=(Kept(what=what, count=3, bytes=size, unreadable=why),))


@pytest.mark.parametrize("what", growth.LIMITS)
def test_only_what_is_above_its_limit_is_named(what: What) -> None:
    plan = spark_plan()
    seen, (one, *rest) = healthy(plan), [node.name for node in plan.rig.nodes]
    little = {name: kept(what, growth.LIMITS[what]) for name in (one, *rest)}
    assert growth.findings(plan, seen, little) == []
    (found,) = growth.findings(plan, seen, {**little, one: kept(what, growth.LIMITS[what] + 1)})
    assert (found.code, found.node, found.severity) == ("growth-large", one, "warn")
    assert f'sudo rignode prune \'{{"what": "{what}", "keep": 1}}\'' in found.remedy


def test_what_cannot_be_told_is_no_silence() -> None:
    plan = spark_plan()
    seen, names = healthy(plan), [node.name for node in plan.rig.nodes]
    silent = kept("images", 0, "docker did not answer in 8 s")
    odd: dict[str, Growth | Unreadable] = dict.fromkeys(names, silent)
    odd[names[0]] = Unreadable(unreadable="nothing (limit 120 s)")
    found = growth.findings(plan, seen, odd)
    assert [v.code for v in found] == ["growth-unreadable"] * len(names)
    assert {v.severity for v in found} == {"warn"}
    # a node that does not answer is named once, by another gate
    del seen[names[0]]
    assert [v.node for v in growth.findings(plan, seen, odd)] == names[1:]


def test_the_line_has_counts_and_bytes() -> None:
    rows = (Kept(what="changes", count=12, bytes=1 << 20, unreadable=None),
            Kept(what="backups", count=1, bytes=5 * GIB, unreadable=None),
            Kept(what="displaced", count=0, bytes=0, unreadable=None),
            Kept(what="images", count=0, bytes=0, unreadable="docker hangs"))  # fmt: skip
    kept_there: dict[str, Growth | Unreadable] = {
        "a": Growth(rows=rows),
        "b": Unreadable(unreadable="x"),
    }
    assert growth.lines(kept_there) == [
        "a: keeps changes 12 (1.0 MiB), backups 1 (5.00 GiB), displaced 0, images unknown"
    ]
