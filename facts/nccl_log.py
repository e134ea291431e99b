"""What NCCL said, in the engine's log, of the network between the nodes; needs NCCL_DEBUG=INFO."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra.api import FactBase

# `Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0`, `Using network IB`, and which devices it took
# (NCCL 2.12 to 2.30). A count stands before each, because a start writes hundreds of them.
_WANTED = (
    "via NET/[A-Za-z0-9_]+|Using network [A-Za-z0-9_]+|NET/(IB|Socket) : (Using|No device) ?.*"
)
_WAY = re.compile(r"\s*(\d+) via NET/(\w+)\Z")
_USED = re.compile(r"\s*\d+ Using network (\w+)\Z")
_DEVICES = re.compile(r"\s*\d+ NET/\w+ : Using (.*?)(?: \[RO\])?(?:; OOB .*)?\Z")


@dataclass(frozen=True)
class NcclNetwork:
    """`channels`: how many between nodes went by which network (IB, Socket, IBext_v10 …);
    `used`: the networks that it said to use; `devices`: what it took for them.
    """

    channels: Mapping[str, int]
    used: tuple[str, ...]
    devices: tuple[str, ...]

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that channels use; before there are any, those that it said to use."""
        return tuple(sorted(self.channels)) or self.used


class NcclLog(FactBase[NcclNetwork]):
    """NCCL's network in the log of a unit's present start."""

    def command(self, unit: str) -> str:
        """The lines that name a network, each once with its count."""
        name = shlex.quote(unit)
        return (
            f"journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID=$(systemctl show --value "
            f"--property=InvocationID -- {name}) | LC_ALL=C grep -aoE {shlex.quote(_WANTED)} | "
            "sort | uniq -c | head -n 60; true"
        )

    def process(self, output: list[str]) -> NcclNetwork:
        """Typed; empty where nothing was said."""
        ways = [found for line in output if (found := _WAY.match(line))]
        used = [found[1] for line in output if (found := _USED.match(line))]
        devices = [found[1].strip() for line in output if (found := _DEVICES.match(line))]
        return NcclNetwork(
            {found[2]: int(found[1]) for found in ways},
            tuple(dict.fromkeys(used)),
            tuple(dict.fromkeys(devices)),
        )
