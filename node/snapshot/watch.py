"""What this host's watch last saw of its engine (node/watch keeps it), where one is installed."""

from __future__ import annotations

import json
import os

from node.core import proc
from node.core.errors import CannotRead, Json
from node.files import state_dir

# node/watch/config.py has the same; it is the watch's own, and its program may be another version
CONFIG = "/etc/rigbook/watch.json"


def read() -> Json | None:
    """Gives the state of the last look; None where no watch is installed or it never looked.

    Raises CannotRead when the state is no JSON object, OSError when it cannot be read.
    """
    path = os.path.join(state_dir.root(), "watch", "state.json")
    if not os.path.lexists(os.environ.get("RIGBOOK_WATCH") or CONFIG):
        return None
    try:
        with proc.waiting_for(path), open(path, "rb") as file:
            state = json.loads(file.read(1 << 20))
    except FileNotFoundError:
        return None
    except ValueError:
        raise CannotRead(f"{path} is not JSON") from None
    if not isinstance(state, dict):
        raise CannotRead(f"{path} is not an object")
    silence = state.get("silence") or {}
    return {
        "status": str(state.get("status")),
        "looked_unix_s": float(state.get("looked_unix_s") or 0),
        "silent": silence.get("reason"),
        "evidence": silence.get("evidence"),
        "restarts": list(silence.get("restarts") or []),
        "stood_down_unix_s": silence.get("stood_down_unix_s"),
    }
