"""Asked without the program: boot id, units, NCCL's log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

# Small facts about a host itself.


class BootId(FactBase[str]):
    """Which boot a host is in: /proc/sys/kernel/random/boot_id."""

    def command(self) -> str:
        """One read."""
        return "cat /proc/sys/kernel/random/boot_id"

    def process(self, output: list[str]) -> str:
        """The id as text."""
        return output[0].strip()


# How a node's engine unit is doing right now, and its log: asked again and again while waiting.

_FIELDS = "ActiveState,SubState,NRestarts,Result,ExecMainStatus,InvocationID"


@dataclass(frozen=True)
class UnitState:
    """A unit's state; `invocation` changes with every start, `last_line` is its newest log line."""

    active: str
    sub: str
    restarts: int
    result: str
    exit_status: int
    invocation: str
    last_line: str

    def ended_since(self, earlier: UnitState) -> str | None:
        """Why this start of the unit is over (None while it lives).

        An engine's death exits 0 and the unit restarts it (lab-notes): a new invocation or a
        restart counter that moved is a death, whatever `Result` says.
        """
        if self.active == "failed":
            return f"unit failed: {self.result}, exit status {self.exit_status}"
        if self.restarts > earlier.restarts or self.sub == "auto-restart":
            if self.result == "exit-code" and self.exit_status == 0:
                # systemd counts what runs before and beside the engine as part of its start
                return "the start failed, not the engine's own program, and systemd starts it again"
            return f"the engine ended (exit status {self.exit_status}) and systemd restarts it"
        if self.active in ("inactive", "deactivating"):
            return f"the unit is {self.active}"
        if earlier.invocation and self.invocation != earlier.invocation:
            return "somebody started the unit anew"
        return None


class Unit(FactBase[UnitState]):
    """The state of a systemd unit with its last log line, in one command."""

    def command(self, unit: str) -> str:
        """systemctl show + the newest journal line."""
        quoted = shlex.quote(unit)
        return (
            f"systemctl show --property={_FIELDS} -- {quoted} && "
            f"echo LastLine=$(journalctl -u {quoted} -n 1 -o cat --no-pager 2>/dev/null"
            " | tr -d '\\000' | cut -c1-200)"
        )

    def process(self, output: list[str]) -> UnitState:
        """Typed; FactProcessError when systemd did not answer."""
        values = dict(line.partition("=")[::2] for line in output if "=" in line)
        try:
            return UnitState(
                active=values["ActiveState"],
                sub=values["SubState"],
                restarts=int(values.get("NRestarts") or 0),
                result=values.get("Result", ""),
                exit_status=int(values.get("ExecMainStatus") or 0),
                invocation=values.get("InvocationID", ""),
                last_line=values.get("LastLine", ""),
            )
        except (KeyError, ValueError):
            raise FactProcessError(f"systemctl show answered: {' '.join(output)[:200]!r}") from None


class Log(FactBase[list[str]]):
    """The last `lines` lines of one start of a unit (its invocation), or of the unit at all."""

    def command(self, unit: str, lines: int = 40, invocation: str = "") -> str:
        """journalctl of what the unit's processes and systemd itself said."""
        chosen = f"-u {shlex.quote(unit)}"
        if invocation:
            of = shlex.quote(invocation)
            # systemd's own lines name it too; any user may write that field, but not as pid 1
            chosen = f"_SYSTEMD_INVOCATION_ID={of} + _PID=1 INVOCATION_ID={of}"
        return f"journalctl {chosen} -n {int(lines)} -o cat --no-pager"

    def process(self, output: list[str]) -> list[str]:
        """The lines, oldest first."""
        return list(output)


# What NCCL said, in the engine's log, of the network between the nodes; needs NCCL_DEBUG=INFO.

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
