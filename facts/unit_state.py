"""How a node's engine unit is doing right now, and its log: asked again and again while waiting."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

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
