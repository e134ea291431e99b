"""Waivers: a known risk passes in writing; what would break atomicity never does."""

from __future__ import annotations

import pytest

from gates.core.codes import CODES, violation
from gates.core.waiver import UNWAIVABLE, apply_waivers, blocking
from schema.core.errors import SpecError

FOUND = [
    violation("fabric-mtu", "spark1", "s", evidence="e", remedy="r"),
    violation("fabric-mtu", "spark2", "s", evidence="e", remedy="r"),
    violation("privileged", None, "s", evidence="e", remedy="r"),
    violation("lock-held", "spark1", "s", evidence="e", remedy="r"),
]


def test_a_code_is_waived_on_all_nodes() -> None:
    remaining, waived = apply_waivers(FOUND, ("fabric-mtu",), "cable swap on Friday")
    assert [v.node for v in waived] == ["spark1", "spark2"]
    assert [v.code for v in remaining] == ["privileged", "lock-held"]


def test_without_waivers_everything_remains() -> None:
    assert apply_waivers(FOUND, (), None) == (FOUND, [])


def test_only_blocking_findings_block() -> None:
    assert [v.code for v in blocking(FOUND)] == ["fabric-mtu", "fabric-mtu", "lock-held"]


@pytest.mark.parametrize("code", sorted(UNWAIVABLE))
def test_what_cannot_be_waived_is_refused_even_where_it_was_not_found(code: str) -> None:
    with pytest.raises(SpecError, match=f"{code} cannot be waived"):
        apply_waivers([], (code,), "I know better")


def test_what_atomicity_stands_on_is_not_waivable() -> None:
    named = {"nodes-reachable", "lock-held", "change-open", "change-inconsistent", "journal-broken"}
    assert named <= UNWAIVABLE < set(CODES)


def test_an_unknown_code_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(SpecError) as error:
        apply_waivers(FOUND, ("fabric-mtv",), "typo")
    text = str(error.value)
    assert "did you mean fabric-mtu?" in text
    assert all(code in text for code in CODES)


@pytest.mark.parametrize("reason", [None, "", "  ", "two\nlines"])
def test_a_waiver_needs_a_reason_of_one_line(reason: str | None) -> None:
    with pytest.raises(SpecError, match="reason"):
        apply_waivers(FOUND, ("fabric-mtu",), reason)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(SpecError) as error:
        apply_waivers(FOUND, ("nope", "lock-held"), None)
    assert len(error.value.problems) == 3
