"""The `hold` step of a change: apt holds of packages, and the way back."""

from __future__ import annotations

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run
from node.core.step_kind import Kind, Seen, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.kernel import apt

TIMEOUT_S = 60.0


def _selections(names: list[str]) -> dict[str, str]:
    """Gives name → what dpkg wants of it (hold, install …), for packages that are there."""
    if not names:
        return {}
    fields = "-f=${Package} ${db:Status-Want} ${db:Status-Status}\\n"
    try:
        done = run(["dpkg-query", "-W", fields, *names], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"dpkg-query: {error}", "hold_failed") from None
    rows = [line.split() for line in done.out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] != "not-installed"}


def _mark(names: list[str], held: bool) -> None:
    """Hold or unhold packages. Raises NodeError with apt-mark's last line."""
    verb = "hold" if held else "unhold"
    try:
        done = run(["apt-mark", verb, *names], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"apt-mark {verb}: {error}", "hold_failed") from None
    now = _selections(names)
    wrong = [name for name in names if (now.get(name) == "hold") != held]
    if done.rc != 0 or wrong:
        raise NodeError(f"apt-mark {verb} {' '.join(wrong or names)}: {done.last_line()}"[:400],
                        "hold_failed", "wait until apt is done, then run again")  # fmt: skip


def _to_change(step: Json) -> list[str]:
    """Gives the packages whose hold is not as wanted. Raises NodeError for an absent one."""
    now = _selections(step["packages"])
    gone = [name for name in step["packages"] if name not in now]
    if gone and step["held"]:
        raise NodeError(f"not installed: {', '.join(gone)}", "no_package")
    return [name for name in now if (now[name] == "hold") != step["held"]]


def _words(held: bool, names: list[str]) -> str:
    return f"{'hold' if held else 'unhold'} {' '.join(names)}"


class AptHoldKind(Kind):
    """Packages that apt is to leave alone, or no longer."""

    keys = ("packages", "held")

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        names = validate.array(step.get("packages"), f"{where}.packages", 100)
        for n, name in enumerate(names):
            if not apt.PACKAGE.match(validate.text(name, f"{where}.packages[{n}]", 121)):
                raise validate.bad(f"{where}.packages[{n}]: {name[:60]!r} is not a package's name")
        held = validate.boolean(step.get("held", True), f"{where}.held")
        return {"op": self.op, "packages": sorted(set(names)), "held": held}

    def describe(self, entry: Json) -> str:
        """Names the packages."""
        return _words(entry["held"], entry["packages"])

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; reads only."""
        return bool(_to_change(step)), "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Hold or unhold the packages that are not so yet."""
        names = _to_change(step)
        if not names:
            return False, "as wanted"
        entry = self.record(steps, packages=names, held=step["held"])
        _mark(names, step["held"])
        steps.finish(entry)
        return True, _words(step["held"], names)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """All of them are held, none is, or (unknown) some are."""
        now = _selections(entry["packages"])
        states = {(state == "hold") == entry["held"] for state in now.values()}
        if states == {True}:
            return DONE
        return UNDONE if states in ({False}, set()) else UNKNOWN

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the holds back to what the step found."""
        now = _selections(entry["packages"])
        names = [name for name in now if (now[name] == "hold") == entry["held"]]
        if not names:
            return "was as before"
        _mark(names, not entry["held"])
        return _words(not entry["held"], names)

    def about(self, entry: Json) -> str:
        """Gives the packages."""
        return f"hold {' '.join(entry['packages'])}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the packages whose hold is not as recorded; a removed one has none."""
        wanted = entry["held"] == (side == "post")
        now = _selections(entry["packages"])
        return [line for name in now
                for line in differing(f"{name} held", now[name] == "hold", wanted)]  # fmt: skip
