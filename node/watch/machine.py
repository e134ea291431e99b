"""What the watch tells of the machine itself: new lines of the kernel about hardware that fails.

It keeps the network's counters too, so that a doctor can say by what they grew since.
"""

from __future__ import annotations

from node.core import log, proc
from node.core.errors import Json
from node.files import state_file
from node.health import counters, disks, kernel_log
from node.watch.config import Watch

# Xids that NVIDIA answers with a reset or a reboot (catalog/xids.yaml; a test compares the two)
XIDS = frozenset((46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158))
_KINDS = ("gpu-lost", "nvme", "mce", "edac", "lockup", "oops")


def tells(row: Json, fixed: list[str]) -> bool:
    """Gives True for a line that somebody has to know of. Pure."""
    if row["kind"] == "xid":
        return row["number"] in XIDS
    if row["kind"] in ("disk", "filesystem"):  # a stick that was pulled out has I/O errors, too
        return str(row["device"]).startswith(("dm-", "md", *fixed))
    if row["kind"] == "aer":
        return "(Fatal)" in row["text"]
    return row["kind"] in _KINDS


def notice(rows: list[Json], watch: Watch) -> Json:
    """Gives the JSON that the webhook gets about new lines; the last of them stands in it. Pure."""
    said = f"the kernel of {watch.node} reports: {rows[-1]['text']}"
    return {
        "rig": watch.rig,
        "node": watch.node,
        "model": watch.endpoint.model,
        "status": "hardware",
        "since": "",
        "misses": 0,
        "detail": f"{len(rows)} line(s); deploys/doctor.py says what is done about it",
        "text": said,
    }


def notices(watch: Watch) -> list[Json]:
    """Gives at most one notice: about the lines since the last look of this boot.

    The first look of a boot tells nothing: what was before it the doctor tells. Raises nothing: a
    log that cannot be read does not end the watch.
    """
    try:
        kept = state_file.load(counters.path(), counters.EMPTY)
        counters.keep()
        if kept["boot"] != proc.boot_id():
            return []
        fixed = disks.fixed()
        lines = [row for row in kernel_log.this_boot() if row["unix_s"] >= kept["unix_s"]]
        rows = [row for row in lines if tells(row, fixed)]
    except OSError as error:
        log.say(f"the machine was not looked at: {error}", log.WARNING)
        return []
    if not rows:
        return []
    found = notice(rows, watch)
    log.say(str(found["text"]), log.WARNING)
    return [found]
