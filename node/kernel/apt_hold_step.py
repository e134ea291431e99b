"""The `hold` step of a change: apt holds of packages, and the way back."""

from __future__ import annotations

from collections.abc import Callable

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run
from node.kernel import apt

KEYS = ("packages", "held")
TIMEOUT_S = 60.0
_WANT = {True: "hold", False: "install"}


def checked(step: Json, where: str) -> Json:
    """Gives a step with every value checked."""
    names = validate.array(step.get("packages"), f"{where}.packages", 100)
    for n, name in enumerate(names):
        if not apt.PACKAGE.match(validate.text(name, f"{where}.packages[{n}]", 121)):
            raise validate.bad(f"{where}.packages[{n}]: {name[:60]!r} is not a package's name")
    held = validate.boolean(step.get("held", True), f"{where}.held")
    return {"op": "hold", "packages": sorted(set(names)), "held": held}


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


def plan(step: Json) -> bool:
    """Gives whether the step would change something; reads only."""
    return bool(_to_change(step))


def do(step: Json, records: list[Json], record: Callable[[], None]) -> tuple[bool, str]:
    """Do the step; gives whether it changed something, and what."""
    names = _to_change(step)
    verb = "hold" if step["held"] else "unhold"
    if not names:
        return False, "as wanted"
    entry: Json = {"op": "hold", "state": "intent", "packages": names, "held": step["held"]}
    records.append(entry)
    record()
    _mark(names, step["held"])
    entry["state"] = "done"
    record()
    return True, f"{verb} {' '.join(names)}"


def settle(entry: Json) -> str | None:
    """Gives what became of a step that a kill left announced: done, undone, or None (mixed)."""
    now = _selections(entry["packages"])
    states = {(state == "hold") == entry["held"] for state in now.values()}
    if states == {True}:
        return "done"
    return "undone" if states in ({False}, set()) else None


def undo(entry: Json) -> str:
    """Put the holds back to what the step found; gives what was done in words."""
    now = _selections(entry["packages"])
    names = [name for name in now if (now[name] == "hold") == entry["held"]]
    if not names:
        return "was as before"
    _mark(names, not entry["held"])
    return f"{'unhold' if entry['held'] else 'hold'} {' '.join(names)}"
