"""The `module` step of a change: the driver's module out of the kernel and blocked, or loaded.

Unloaded and blocked is one state: a machine that reboots in the middle of a change loads nothing.
"""

from __future__ import annotations

import contextlib
import platform

from node.core import proc, validate
from node.core.errors import Json, NodeError
from node.core.step_kind import POST, PRE, Kind, Seen, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.driver import apt_plan, loaded


def _now(name: str) -> Json:
    """Gives the state that a step finds."""
    return {
        "parts": [row["name"] for row in loaded.parts(name)],
        "version": loaded.version(name),
        "blocked": loaded.is_blocked(),
        "release": platform.release(),
    }


def wants_boot(rows: list[Json]) -> bool:
    """Gives True where an undo waits for one boot: the module is blocked, and still held."""
    return any(row.get("boot") == proc.boot_id() for row in rows)


class ModuleKind(Kind):
    """The driver's module: `loaded` False takes it out and blocks it, True loads it.

    `may_boot`: where the kernel itself holds it, it stays until the next boot, blocked.
    """

    keys = ("module", "loaded", "version", "may_boot")
    required = ("module", "loaded")

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        version = step.get("version")
        return {
            "op": self.op,
            "module": validate.name(step["module"], f"{where}.module"),
            "loaded": validate.boolean(step["loaded"], f"{where}.loaded"),
            "version": None if version is None else apt_plan.checked(version, f"{where}.version"),
            "may_boot": validate.boolean(step.get("may_boot", False), f"{where}.may_boot"),
        }

    def describe(self, entry: Json) -> str:
        """Names the module and what is wanted of it."""
        verb = "load" if entry.get("loaded") else "unload"
        return f"{verb} {entry.get('module')} {entry.get('version') or ''}".rstrip()

    def about(self, entry: Json) -> str:
        """Gives the module."""
        return f"module {entry.get('module')}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the module is not so yet; reads only."""
        now = _now(step["module"])
        if step["loaded"]:
            return now["blocked"] or now["version"] != step["version"], "would load"
        return not now["blocked"] or bool(now["parts"]), "would unload"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Unload and block, or unblock and load."""
        name = step["module"]
        changes, _ = self.plan(step, Seen())
        if not changes:
            return False, "as wanted"
        former = [row for row in steps.rows if row["op"] == self.op and row["state"] != UNDONE]
        wanted = {key: step[key] for key in ("module", "loaded", "version")}
        if step["loaded"]:
            daemons = former[0]["daemons"] if former else loaded.running_daemons()
            more = former[0]["pre"]["parts"] if former else []
            entry = self.record(steps, **wanted, pre=_now(name), daemons=daemons)
            said = loaded.load(name, step["version"], more, daemons)
        else:
            daemons = loaded.running_daemons()
            entry = self.record(steps, **wanted, pre=_now(name), daemons=daemons)
            said = self._out(name, step["may_boot"])
        steps.finish(entry)
        return True, said

    def _out(self, name: str, may_boot: bool) -> str:
        loaded.block(name)
        try:
            loaded.unload(name)
        except NodeError as error:
            # the processes that had it are gone by the gates: what is left goes with the boot
            if error.code != "module_busy" or not may_boot or loaded.users(name):
                raise
            return f"{name} is blocked and goes with the next boot: {error}"
        return f"{name} is unloaded and blocked"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """The wanted state, the one before, or (unknown) neither."""
        if not self.verify(entry, POST):
            return DONE
        return UNKNOWN if self.verify(entry, PRE) else UNDONE

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Bring the module to what the step found. Raises NodeError; with `boot` noted in the entry
        where one boot brings it.
        """
        name, pre = entry["module"], entry["pre"]
        if not pre["parts"]:
            return self._away(entry)
        if platform.release() != pre["release"]:
            loaded.unblock()
            return self.leave(entry, f"{name} {pre['version']} loads with {pre['release']}, which "
                                     f"does not run now: {platform.release()} does")  # fmt: skip
        if loaded.version(name) == pre["version"] and not loaded.is_blocked():
            return "was as before"
        if loaded.version(name) != pre["version"]:
            self._away(entry)
        elif pre["blocked"]:
            return "was as before"
        return loaded.load(name, pre["version"], pre["parts"], entry["daemons"])

    def _away(self, entry: Json) -> str:
        name = entry["module"]
        if entry["pre"]["parts"] or entry["pre"]["blocked"]:
            loaded.block(name)
        try:
            loaded.unload(name)
        except NodeError as error:
            if error.code == "module_busy" and "boot" not in entry:
                entry["boot"] = proc.boot_id()
            raise
        if not entry["pre"]["parts"] and not entry["pre"]["blocked"]:
            with contextlib.suppress(OSError):
                loaded.unblock()
        return f"{name} is unloaded"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives in what the module is not as recorded; of another kernel nothing is recorded."""
        name, pre, now = entry["module"], entry["pre"], _now(entry["module"])
        if now["release"] != pre["release"]:
            return [] if side == PRE else differing(f"{name} blocked", now["blocked"],
                                                    not entry["loaded"])  # fmt: skip
        if side == PRE:
            lines = differing(f"the loaded {name}", now["version"], pre["version"])
            return lines + differing(f"{name} blocked", now["blocked"], pre["blocked"])
        wanted = entry["version"] if entry["loaded"] else None
        lines = differing(f"{name} blocked", now["blocked"], not entry["loaded"])
        if entry["loaded"] and wanted is None:
            return lines + differing(f"{name} loaded", bool(now["parts"]), True)
        return lines + differing(f"the loaded {name}", now["version"], wanted)
