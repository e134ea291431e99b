"""What prelaunch clears away: the work of the verbs reap, shm and caches, without a change; and the
weights that it does not let an engine load.

Nothing is held: it runs inside the start of the very unit, and takes no lock, for which another
verb may wait that has asked for this start.
"""

from __future__ import annotations

from node.core.errors import NodeError
from node.engine.config import Engine
from node.engine.page_cache import caches
from node.reap.reap import reap
from node.reap.shared_memory import shm
from node.weights import beside, hub_cache

MIB = 1 << 20


def orphans(engine: Engine) -> list[str]:
    """Ends engine processes that nobody owns and removes unmapped segments; gives what was done.

    Raises NodeError (`orphans`) when the way is not free: a port that somebody else holds, or
    memory that only a reboot frees.
    """
    named = {} if engine.container is None else {"container": engine.container}
    answer = reap({"unit": engine.unit, "ports": list(engine.ports), "hold": False, **named})
    lines = [f"ended pid {row['pid']} {row['argv0']} ({row['how']}): {row['why']}"
             for row in answer["ended"]]  # fmt: skip
    if answer["verdict"] not in ("clean", "nothing"):
        raise NodeError(f"{answer['verdict']}: {answer['evidence']}", "orphans", "rignode reap")
    cleared = shm({})
    if cleared["removed"]:
        names = ", ".join(row["name"] for row in cleared["removed"])
        lines.append(f"removed from /dev/shm ({cleared['freed_bytes'] // MIB} MiB): {names}")
    return lines


def require_whole_weights(engine: Engine) -> None:
    """Raise NodeError (`weights_incomplete`) for weights that are half of one set, half of another:
    the engine would load them without an error."""
    change = beside.incomplete(hub_cache.snapshot_of(engine.weights))
    if change is not None:
        raise NodeError(
            f"{engine.weights} is half of one set and half of another: change {change} was cut off",
            "weights_incomplete",
            f"rignode undo {change}; or finish it: deploys/weights.py",
        )


def drop_caches(engine: Engine, need: int) -> str:
    """Drops the page cache once when less than `need` bytes are free; gives what came of it."""
    # the unit's name stands for a venv: caches looks at both
    name = engine.container or engine.unit.rpartition(".")[0]
    answer = caches({"need_free_bytes": need, "unless_running": name})
    return f"page cache: {answer['verdict']}: {answer['why']}"
