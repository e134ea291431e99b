"""check backups: what rigbook-verify.timer starts each week.

Reads every backup of this host back, and every copy that it keeps for others. What came of it lies
in /var/lib/rigbook/weekly.json, and the doctor tells it.
"""

from __future__ import annotations

import time

from node.backup import listing, store, verify
from node.copies import carry, others
from node.core import log
from node.core.errors import NodeError

# while somebody works on the backups
WAIT_S, TRIES = 60.0, 60


def run() -> None:
    """Read all of them. Raises NodeError when one is damaged, after the others were read."""
    began = time.time()
    problems: list[str] = []
    read = 0
    for row in store.all_backups():
        try:
            _verify(row.id)
            read += 1
        except NodeError as error:
            if error.code != "no_backup":  # pruned meanwhile
                problems.append(f"{row.id}: {error}")
    for kept in others.rows():
        try:
            carry.check(kept["place"], store.parse(kept["backup"], kept["place"]), lambda _: None)
            read += 1
        except (NodeError, OSError) as error:
            problems.append(f"the copy for {kept['host']}: {error}")
    took = time.time() - began
    listing.note_weekly({"unix_s": time.time(), "read": read, "problem": "; ".join(problems)[:900]})
    if problems:
        raise NodeError("; ".join(problems), "backup_damaged",
                        "take it from a copy, or back up again")  # fmt: skip
    log.say(f"{read} backups are whole; {took:.0f} s", log.NOTICE)


def _verify(backup: str) -> None:
    """Verify a backup; waits while somebody else works on them. Raises NodeError."""
    for number in range(TRIES):
        try:
            verify.verify({"backup": backup})
            return
        except NodeError as error:
            if error.code != "locked" or number == TRIES - 1:
                raise
        time.sleep(WAIT_S)
