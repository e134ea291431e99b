"""The engine's unit while its files go back: held stopped, its orphans ended, its memory awaited.

A drop-in under /run holds it: starts are refused, enabled and masked state stay as they are, and a
reboot lifts it. The change says that it holds before the file is there: whoever undoes it lifts it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from node.change import journal
from node.core import systemctl
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.engine import before_start, config, memory_need
from node.engine.config import Engine

RUNTIME = "/run/systemd/system"
FILE = "98-rigbook-undo.conf"
MEMORY_S = 30.0
POLL_S = 0.2
_CONTENT = """\
# Made by rigbook: it holds this unit while its files go back. `rignode undo` and a reboot lift it.
[Unit]
AssertPathExists=!{path}
[Service]
Restart=no
"""


def stopped_engine() -> Engine | None:
    """Gives this host's engine when it is known and its unit is stopped, else None."""
    try:
        engine = config.load()
        return engine if systemctl.inspect_unit(engine.unit)["active"] in systemctl.DOWN else None
    except NodeError:
        return None


def hold(change: Json, name: str) -> None:
    """Hold a stopped unit, told in the change first. Raises NodeError, OSError."""
    if not os.path.isdir(RUNTIME):
        return
    folder = os.path.join(RUNTIME, f"{name}.d")
    path = os.path.join(folder, FILE)
    change["held"] = path
    journal.save(change)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "w", encoding="ascii") as file:
        file.write(_CONTENT.format(path=path))
    systemctl.systemctl("daemon-reload")


def lift(change: Json) -> bool:
    """Take a change's hold away, also that of a run that was killed; gives whether there was one.

    The caller reloads systemd; starts pass from here on, since the assertion names the file.
    """
    path = change.get("held")
    if path is None:
        return False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    del change["held"]
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))  # others may have drop-ins there
    return True


@contextlib.contextmanager
def held(change: Json, engine: Engine | None) -> Iterator[None]:
    """Holds an engine's unit for as long as something is done; None: nothing is held."""
    try:
        if engine is not None:
            hold(change, engine.unit)
        yield
    finally:
        if lift(change):
            if journal.find(change["id"]):  # it is dropped where nothing was changed
                journal.save(change)
            systemctl.systemctl("daemon-reload")


def clear(engine: Engine) -> list[str]:
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
