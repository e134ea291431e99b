"""hardware: what a person would have to look at in the BIOS, as far as Linux can read; read-only.

Type: schema/observed/hardware.py. A reading verb of its own: only the deploys that care ask for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from node.core import proc, validate
from node.core.errors import CannotRead, Json, io_reason
from node.files import state_dir
from node.machine import board, nic


def _section(read: Callable[[], Any]) -> Any:
    """Gives what a reader gives, or {"unreadable": why}."""
    try:
        return read()
    except CannotRead as error:
        return {"unreadable": str(error)}
    except OSError as error:
        return {"unreadable": io_reason(error)}


def attestations() -> list[Json]:
    """Gives the files of attestations/, each {"file", "said"}; `said` None for what is no JSON."""
    folder = os.path.join(state_dir.root(), "attestations")
    rows: list[Json] = []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        raw = proc.read_bytes(os.path.join(folder, name)) or b""
        try:
            said = json.loads(raw.decode("utf-8"))
        except ValueError:
            said = None
        rows.append({"file": name, "said": said if isinstance(said, dict) else None})
    return rows


def collect(request: Json) -> Json:
    """Gives the document of schema/observed/hardware.py."""
    began = time.monotonic()
    validate.keys(request, "request", ())
    return {
        "format": 1,
        "virtual": _section(board.virtual),
        "processor": board.processor(),
        "nics": _section(nic.read),
        "addresses": _section(nic.addresses),
        "board": _section(board.board),
        "displays": _section(board.displays),
        "graphics": _section(board.graphics),
        "efi": _section(board.efi),
        "clock": _section(board.clock),
        "clock_unix_s": time.time(),
        "sleep": _section(board.sleeping),
        "attestations": _section(attestations),
        "took_s": round(time.monotonic() - began, 3),
    }
