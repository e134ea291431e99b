"""The `reread` step of a change: PID 1 or the journal takes up its files, then and at an undo.

Not a unit step: an undo stops such a unit while files go back, and a journal that is stopped, not
restarted, loses the open ends of every service's output.
"""

from __future__ import annotations

from node.core import validate
from node.core.errors import Json
from node.core.step_kind import Kind, Seen, Steps
from node.core.step_state import DONE
from node.core.systemctl import systemctl

COMMANDS = {"manager": ("daemon-reload",), "journald": ("restart", "systemd-journald.service")}


class RereadKind(Kind):
    """What reads its configuration anew: `manager` (PID 1) or `journald`."""

    keys = ("what",)
    required = ("what",)

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with its value checked."""
        return {"op": self.op, "what": validate.choice(step["what"], f"{where}.what", COMMANDS)}

    def describe(self, entry: Json) -> str:
        """Names who reads."""
        return f"{self.op} {entry['what']}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives the command: whoever asks for it has seen that there is something to read."""
        return True, f"systemctl {' '.join(COMMANDS[step['what']])}"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Have it read."""
        entry = self.record(steps, what=step["what"])
        systemctl(*COMMANDS[entry["what"]])
        steps.finish(entry)
        return True, self.describe(entry)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Have it read once more: twice is as once."""
        systemctl(*COMMANDS[entry["what"]])
        return DONE

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Have it read the files that are back by now (special comes after path)."""
        systemctl(*COMMANDS[entry["what"]])
        return f"{self.describe(entry)} again"

    def about(self, entry: Json) -> str:
        """Gives who reads."""
        return self.describe(entry)
