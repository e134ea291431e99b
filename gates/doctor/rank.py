"""Which finding explains which: the likely cause of each code, and what to ignore because of it.

A cause explains findings of its own node (`here`) and of any node (`anywhere`). `until` are codes
of the same node in whose presence it does not explain that nothing is served: an engine whose
program is missing never got as far as its memory or its flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from gates.core.violation import Violation
from gates.doctor.cause import DOWN, UNSERVED
from gates.doctor.causes import CAUSES


@dataclass(frozen=True)
class Finding(Violation):
    """A violation with what it explains: `code@node` of each, or `code` for one of the rig."""

    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """How other findings name this one."""
        return key_of(self)


def key_of(violation: Violation) -> str:
    """`code@node`, or the code alone for a finding of the whole rig."""
    return f"{violation.code}@{violation.node}" if violation.node else violation.code


def explain(findings: Sequence[Violation], ranks: Mapping[str, int] | None = None) -> list[Finding]:
    """The findings with causes and explanations, the likeliest cause first.

    Order: what blocks and what explains a block, then the other warnings; in each, lowest layer
    first, then by the nodes' ranks, and never an effect before its cause.
    """
    found = list(dict.fromkeys(findings))
    effects = {v: [other for other in found if _explains(v, other, found)] for v in found}
    order = ranks or {}

    def tier(violation: Violation) -> bool:
        blocks = (violation, *effects[violation])
        return not any(one.severity == "block" for one in blocks)

    def place(violation: Violation) -> tuple[bool, int, bool, int, str, str]:
        rank = order.get(violation.node or "", -1)
        warns = violation.severity != "block"
        return tier(violation), violation.layer, warns, rank, violation.node or "", violation.code

    ranked = sorted(found, key=place)
    causes = {v: [other for other in ranked if v in effects[other]] for v in found}
    done: dict[Violation, None] = {}
    for violation in ranked:
        _after_causes(violation, causes, done)
    return [_finding(v, effects[v], causes[v]) for v in done]


def _after_causes(
    violation: Violation, causes: Mapping[Violation, list[Violation]], done: dict[Violation, None]
) -> None:
    """Puts a finding behind everything that explains it; the table has no circle (a test)."""
    if violation in done:
        return
    for cause in causes[violation]:
        _after_causes(cause, causes, done)
    done[violation] = None


def _explains(cause: Violation, effect: Violation, found: Iterable[Violation]) -> bool:
    what = CAUSES[cause.code]
    if cause is effect or cause.code == effect.code:
        return False
    here = cause.node is None or cause.node == effect.node
    if effect.code not in what.anywhere and not (here and effect.code in what.here):
        return False
    if effect.code not in (*DOWN, *UNSERVED):
        return True
    return not any(v.code in what.until and v.node == cause.node for v in found)


def _finding(
    violation: Violation, effects: Sequence[Violation], causes: Sequence[Violation]
) -> Finding:
    values = {field.name: getattr(violation, field.name) for field in fields(Violation)}
    values["cause"] = violation.cause or CAUSES[violation.code].text
    return Finding(
        **values,
        explains=tuple(dict.fromkeys(map(key_of, effects))),
        explained_by=tuple(dict.fromkeys(map(key_of, causes))),
    )
