"""How much of a card HAMi allows: CUDA_DEVICE_MEMORY_LIMIT[_i] in binary units, computed.

HAMi-core reads the number with strtoul in base 0 and takes the last letter as its unit (k, m, g, of
1024): a leading 0 makes it octal, and 0 means "no limit" to one part and 0 bytes to another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
VARIABLE = "CUDA_DEVICE_MEMORY_LIMIT"
_UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": GIB}
_LIMIT = re.compile(r"([0-9]{1,15})([kmg]?)\Z", re.I)
_OOM = re.compile(r"Device (\d{1,3}) OOM (\d{1,18}) / (\d{1,18})")
ALLOWED = "allowed: a whole number with k, m or g (of 1024), such as 24000m"


class LimitError(ValueError):
    """A limit that may not be set; `str()` says why, with the numbers."""


@dataclass(frozen=True)
class Oom:
    """One refusal in a pod's log: what the device would hold, and what is allowed, in bytes."""

    device: int
    wanted: int
    allowed: int


def variable(device: int | None) -> str:
    """The variable's name: of one device, or of all."""
    return VARIABLE if device is None else f"{VARIABLE}_{device}"


def parse_limit(text: str) -> int:
    """A limit in bytes. LimitError for anything that HAMi-core would read as something else."""
    found = _LIMIT.match(text)
    if found is None:
        sign = "is negative" if text.startswith("-") else "is no limit that HAMi reads"
        raise LimitError(f"{text[:40]!r} {sign}; {ALLOWED}")
    number, unit = found[1], found[2].lower()
    if int(number) == 0:
        raise LimitError(
            f"{text!r} is 0 bytes to HAMi-core (`Total VRAM: 0 MiB`), not `no limit`; {ALLOWED}"
        )
    if number.startswith("0"):
        raise LimitError(f"{text!r} starts with 0: HAMi-core reads it as octal; {ALLOWED}")
    return int(number) * _UNITS[unit]


def shown(size: int) -> str:
    """A size in bytes, MiB and GiB: `25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB`."""
    return f"{size:,} bytes = {size / MIB:,.1f} MiB = {size / GIB:.2f} GiB"


def ooms(lines: Iterable[str]) -> tuple[Oom, ...]:
    """The refusals in a log, in its order."""
    found = (match for line in lines for match in _OOM.finditer(line))
    return tuple(Oom(*map(int, match.groups())) for match in found)


def largest(found: Iterable[Oom], device: int | None) -> Oom | None:
    """The largest request of a device (None: of any), or None where there is none."""
    rows = [oom for oom in found if device is None or oom.device == device]
    return max(rows, key=lambda oom: oom.wanted, default=None)


def most(hardware: int, reserve: int) -> int:
    """The largest limit: hardware less reserve, in whole MiB, in bytes."""
    return max(0, (hardware - reserve) // MIB) * MIB


def checked(limit: int, hardware: int, reserve: int, wanted: int | None) -> list[str]:
    """The arithmetic of a limit, a line each. LimitError when it does not fit.

    All in bytes. `wanted` is the largest request that was refused, None where none is known.
    """
    if limit > hardware:
        raise LimitError(
            f"the limit {shown(limit)} is more than the hardware has: {shown(hardware)}"
        )
    if hardware - limit < reserve:
        raise LimitError(
            f"the limit {shown(limit)} leaves {shown(hardware - limit)} of the hardware's "
            f"{shown(hardware)}; the reserve is {shown(reserve)}; allowed: up to "
            f"{most(hardware, reserve) // MIB}m, or a smaller reserve_mib"
        )
    if wanted is not None and limit < wanted:
        raise LimitError(
            f"the limit {shown(limit)} is less than the {shown(wanted)} that was asked for: "
            f"{shown(wanted - limit)} too little"
        )
    lines = [
        f"hardware  {shown(hardware)}",
        f"limit     {shown(limit)}",
        f"left      {shown(hardware - limit)} (reserve {shown(reserve)})",
    ]
    if wanted is not None:
        lines.append(f"wanted    {shown(wanted)}, headroom {shown(limit - wanted)}")
    return lines


def proposed(hardware: int, reserve: int, wanted: int | None) -> int:
    """The limit to set, in bytes: all but the reserve. LimitError when `wanted` does not fit.

    HAMi's number is the whole that the device would hold, so a limit of that size is enough; the
    rest of the card is given too, because the next request is larger.
    """
    limit = most(hardware, reserve)
    if wanted is not None and wanted > hardware:
        raise LimitError(
            f"the hardware cannot hold it: wanted {shown(wanted)}, there are {shown(hardware)}; a "
            "smaller model, context or cache is the answer, not a limit"
        )
    if wanted is not None and wanted > limit:
        raise LimitError(
            f"wanted {shown(wanted)}; hardware less reserve is {shown(limit)}; it fits only with "
            f"--data reserve_mib={max(0, hardware - wanted) // MIB}, or with a smaller model, "
            "context or cache"
        )
    if limit <= 0:
        raise LimitError(f"the reserve {shown(reserve)} leaves nothing of {shown(hardware)}")
    return limit


def as_text(limit: int) -> str:
    """A limit as the variable takes it: whole MiB where it is one, else bytes."""
    return f"{limit // MIB}m" if limit % MIB == 0 else str(limit)
