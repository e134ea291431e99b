"""What an engine's last words mean: exit statuses and log lines that incidents have taught us."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gates.engine.signature_table import SIGNATURES, Signature
from node.rules.root_cause import ROOT_CAUSE
from schema.observed.units import Unit

# Lines of starts that end well have the same words: what vLLM and NCCL only tell names no cause.
_TOLD = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |NCCL INFO |\[Gloo\] Rank \d+ is connected")


def from_log(lines: Iterable[str]) -> str | None:
    """The likely cause that the lines name, or None."""
    found = signature(lines)
    return found.meaning if found else None


def signature(lines: Iterable[str]) -> Signature | None:
    """The signature that the lines have, or None: the root cause's, where a line names one."""
    rows = [row for row in lines if not _TOLD.search(row)]
    texts = [*(row for row in rows if row.startswith(ROOT_CAUSE)), "\n".join(rows)]
    return next(
        (one for text in texts for one in SIGNATURES
         if re.search(one.pattern, text, re.IGNORECASE)),
        None,
    )  # fmt: skip


def action(unit: Unit) -> str:
    """What is done about the signature in a unit's log, with a `; ` behind it; empty: none."""
    found = signature(unit.errors)
    return f"{found.action}; " if found and found.action else ""


def from_exit(unit: Unit) -> str | None:
    """The likely cause that a unit's exit status names, or None."""
    if unit.exit_kind in ("killed", "dumped"):
        by_hand = " (out of memory, or somebody's kill -9)" if unit.exit_status == 9 else ""
        return f"signal {unit.exit_status} ended it{by_hand}"
    if not unit.exit_kind and unit.exit_status == 0:
        return None
    meanings = {
        0: "its engine ended with status 0, as vLLM does when one of its ranks has died",
        126: "what it starts cannot be run: a folder in the place of a file, or no x bit",
        127: "a file that it starts does not exist, on the host or inside the container (C13)",
        137: "it was killed with signal 9: out of memory, or somebody's kill -9",
        203: "the program of its ExecStart does not exist (C13)",
    }
    return meanings.get(unit.exit_status)


def cause_of(unit: Unit) -> str:
    """The likely cause of a unit's end, from its log, else from its exit status."""
    return (
        from_log(unit.errors) or from_exit(unit) or "its log says why: journalctl -u " + unit.name
    )


def last_exit(unit: Unit) -> str:
    """How the unit's main process ended, for a line of evidence."""
    if not unit.exit_kind and unit.exit_status == 0:
        return "none of this start"
    kind = unit.exit_kind or "exited"
    return f"{kind} {'by signal' if kind != 'exited' else 'with status'} {unit.exit_status}"
