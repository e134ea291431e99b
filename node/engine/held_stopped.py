"""The engine's unit while its files go back: held, its orphans ended, its memory awaited."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from node.change import claim, journal, undo
from node.core import systemctl
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.step_kind import Steps
from node.engine import before_start, config, memory_need
from node.engine.config import Engine
from node.systemd import hold

MEMORY_S = 30.0
POLL_S = 0.2


def engine_if_stopped() -> Engine | None:
    """Gives this host's engine when it is known and its unit is stopped, else None."""
    try:
        engine = config.load()
        return engine if systemctl.inspect_unit(engine.unit)["active"] in systemctl.DOWN else None
    except NodeError:
        return None


@contextlib.contextmanager
def unit_held(steps: Steps, engine: Engine | None) -> Iterator[None]:
    """Holds an engine's unit for as long as something is done; None: nothing is held."""
    try:
        if engine is not None:
            hold.hold(engine.unit, steps)
        yield
    finally:
        if hold.lift(steps):
            if journal.find(steps.change["id"]):  # it is dropped where nothing was changed
                steps.write()
            systemctl.systemctl("daemon-reload")


def end_leftovers(engine: Engine) -> list[str]:
    """Ends what the stopped engine left behind; gives a line for each thing done or in the way."""
    try:
        return before_start.orphans(engine)
    except (NodeError, CannotRead) as error:
        return [f"the way is not free: {error}"]
    except OSError as error:
        return [f"orphans could not be looked for: {io_reason(error)}"]


def await_memory(engine: Engine) -> list[str]:
    """Waits until the next start finds its memory; gives a line where it took a while or failed.

    The start itself decides: it has a budget of its own, and says why it refuses.
    """
    began = time.monotonic()
    while True:
        try:
            found = memory_need.shortage(engine)
            lacks = found.evidence if found else ""
        except CannotRead as error:
            lacks = str(error)
        took = time.monotonic() - began
        if not lacks:
            return [] if took < 1 else [f"its memory was free after {took:.0f} s"]
        if took >= MEMORY_S:
            return [f"memory, after {took:.0f} s: {lacks}"]
        time.sleep(POLL_S)


class EngineHold(undo.Around):
    """What an undo does around the files of a stopped engine; nothing where none is stopped."""

    def __init__(self) -> None:
        # known before its file goes back; None: no engine here, or one that goes on running
        self.engine: Engine | None = None

    def _rows(self, lines: list[str]) -> list[Json]:
        unit = self.engine.unit if self.engine else ""
        return [{"op": "clear", "unit": unit, "detail": line} for line in lines]

    def hold(self, steps: Steps, units: list[str]) -> None:
        """Hold the stopped engine's unit when it is one of these."""
        found = engine_if_stopped()
        if found is not None and found.unit in units:
            self.engine = found
            hold.hold(found.unit, steps)

    def clear(self) -> list[Json]:
        """End what the engine left behind."""
        return self._rows(end_leftovers(self.engine)) if self.engine else []

    def lift(self, steps: Steps) -> None:
        """Let starts pass again."""
        hold.lift(steps)

    def await_start(self) -> list[Json]:
        """Wait for the start's memory."""
        if self.engine is None:
            return []
        # as it is now: the files of the former engine are back
        return self._rows(await_memory(engine_if_stopped() or self.engine))


def claim_change(request: Json) -> Json:
    """`claim`, with the engine held while files go back (node/change/claim.py)."""
    return claim.claim(request, EngineHold())
