"""What became of this host with nobody there: a change that its keeper ended, an unasked reboot."""

from __future__ import annotations

import time
from collections.abc import Iterator

from node.change import journal
from node.core import log, proc
from node.core.errors import CannotRead, Json, NodeError
from node.files import state_file
from node.health import counters
from node.host import boots
from node.rules.heartbeat import KEEPER
from node.watch.config import Watch

# rigbook's own reboots, also where the last lines of that boot were lost
_OURS = ("reboot", "kernel")


def look(watch: Watch, since: float) -> list[Json]:
    """Gives the notices of what came after the last look, at `since` in Unix seconds, and tells the
    journal. Raises nothing: what cannot be read is told there. Call it before counters.keep().
    """
    try:
        changes = journal.read_all()[0]
        found = [*_ended(changes, since), *_rebooted(changes)]
    except (NodeError, CannotRead, OSError) as error:
        log.say(f"what happened meanwhile is not known: {error}", log.WARNING)
        return []
    for _, text in found:
        log.say(f"{watch.node} of {watch.rig}: {text}", log.WARNING)
    return [{"rig": watch.rig, "node": watch.node, "model": watch.endpoint.model, "status": status,
             "text": f"{watch.node} of {watch.rig}: {text}"} for status, text in found]  # fmt: skip


def _ended(changes: list[Json], since: float) -> Iterator[tuple[str, str]]:
    """Gives the changes whose lease ran out, once they are closed here."""
    for change in changes:
        by = (change.get("taken") or {}).get("deploy")
        if by == KEEPER and (change["closed_unix_s"] or 0) > since:
            yield "lease", (f"{change['deploy']}, change {change['id']}, is {change['status']}: "
                            f"{change['reason']}")  # fmt: skip


def _rebooted(changes: list[Json]) -> Iterator[tuple[str, str]]:
    """Gives a reboot since the last look that nobody asked for. Raises CannotRead."""
    former = state_file.load(counters.path(), counters.EMPTY)["boot"]
    if former in ("", proc.boot_id()):
        return
    if any(row["deploy"] in _OURS and row["boot_id"] == former for row in changes):
        return
    for boot in boots.read():
        if boot["boot_id"] == former.replace("-", "") and boot["asked_for"] is False:
            then = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(boot["last_unix_s"]))
            yield "rebooted", (f"it rebooted, which nobody asked for; the last line before is of "
                               f"{then}; deploys/doctor.py has its last words")  # fmt: skip
