"""What rigbook keeps has a bound; where it is much all the same, the doctor says what frees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gates.core.check import GIB, MIB, Observed, answering_nodes, gib
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.observed.files import Growth, Kept
from schema.observed.snapshot import Unreadable

Growing = Mapping[str, Growth | Unreadable]
# Bytes of each kind that the rule (node/growth) would leave on a busy rig; above it a person looks.
LIMITS = {
    "changes": 64 * MIB,
    "blobs": 4 * GIB,
    "programs": 100 * MIB,
    "displaced": 20 * GIB,
    "backups": 100 * GIB,
    "copies": 100 * GIB,
    "images": 100 * GIB,
    "evidence": 64 * MIB,
}


def findings(plan: Plan, observed: Observed, kept: Growing) -> list[Violation]:
    """A warning for each kind above its limit, and for what could not be told (core.md 14).

    A node that did not answer at all is named by another gate.
    """
    found: list[Violation] = []
    for node, _ in answering_nodes(plan, observed):
        grown = kept[node.name]
        if isinstance(grown, Unreadable):
            found.append(section_unreadable(node.name, "growth", grown))
        else:
            found += _of(node.name, grown)
    return found


def _of(node: str, grown: Growth) -> Iterator[Violation]:
    for row in grown.rows:
        if row.unreadable:
            why = Unreadable(unreadable=f"{row.what}: {row.unreadable}")
            yield section_unreadable(node, "growth", why)
        elif row.bytes > LIMITS[row.what]:
            prune = f'{{"what": "{row.what}", "keep": 1'
            yield violation(
                "growth-large",
                node,
                f"rigbook keeps {gib(row.bytes)} of {row.what} on {node}",
                evidence=f"{_words(row)}; more than {gib(LIMITS[row.what])} is much",
                remedy=f"on {node}: sudo rignode prune '{prune}, \"dry\": true}}' shows what would "
                f"go; sudo rignode prune '{prune}}}' removes it",
            )


def lines(kept: Growing) -> list[str]:
    """A line a node: how many of each kind there are, and their bytes."""
    return [
        f"{name}: keeps {', '.join(map(_words, grown.rows))}"
        for name, grown in kept.items()
        if isinstance(grown, Growth)
    ]


def _words(row: Kept) -> str:
    if row.unreadable:
        return f"{row.what} unknown"
    size = f"{row.bytes / MIB:.1f} MiB" if row.bytes < GIB else gib(row.bytes)
    return f"{row.what} {row.count} ({size})" if row.count else f"{row.what} 0"
