"""What the watch knows, as a file for the textfile collector of Prometheus's node exporter.

docs/reference/metrics.md has the table of names and units.
"""

from __future__ import annotations

import os
import time

from node.core.errors import Json
from node.files import atomic
from node.files.atomic import Folder, Owner
from node.rules.restarts import WINDOW_S
from node.watch.config import Watch

# name: what it says; all are gauges, in base units
METRICS = {
    "rigbook_watch_up": "1 where the last looks brought an answer of the model that was asked for",
    "rigbook_watch_fallback": "1 where another model answers in its place",
    "rigbook_watch_misses": "looks in a row without an answer",
    "rigbook_watch_status_since_timestamp_seconds": "when the present status began",
    "rigbook_watch_last_look_timestamp_seconds": "when it was last looked",
    "rigbook_watch_pending_notices": "notices that the webhook has not taken yet",
    "rigbook_engine_silent": "1 where the engine of this node counts as silent",
    "rigbook_engine_silent_seconds": "how long requests have waited without a token, else 0",
    "rigbook_engine_silent_restarts": "restarts for silence in the last six hours",
    "rigbook_engine_stood_down": "1 where these restarts are used up and it is left alone",
}


def values(state: Json, watch: Watch, now: float) -> dict[str, float]:
    """Gives each metric's value; those of the engine only where this host's is watched."""
    status, silence = state["status"], state["silence"]
    found: dict[str, float] = {
        "rigbook_watch_up": status == "up",
        "rigbook_watch_fallback": status == "fallback",
        "rigbook_watch_misses": state["misses"],
        "rigbook_watch_status_since_timestamp_seconds": state["since"],
        "rigbook_watch_last_look_timestamp_seconds": state["looked_unix_s"],
        "rigbook_watch_pending_notices": len(state["pending"]),
    }
    if watch.silence is not None:
        judged = silence["judged"]
        since, looked = judged["since"], judged["looked"]
        recent = [then for then in silence["restarts"] if now - then < WINDOW_S]
        found["rigbook_engine_silent"] = silence["reason"] is not None
        found["rigbook_engine_silent_seconds"] = 0 if since is None else looked - since
        found["rigbook_engine_silent_restarts"] = len(recent)
        found["rigbook_engine_stood_down"] = silence["stood_down_unix_s"] is not None
    return found


def render(state: Json, watch: Watch, now: float) -> str:
    """Gives the file's text."""
    labels = ",".join(
        f'{name}="{_escaped(value)}"'
        for name, value in (
            ("rig", watch.rig), ("node", watch.node), ("model", watch.endpoint.model)
        )
    )  # fmt: skip
    lines: list[str] = []
    for name, value in values(state, watch, now).items():
        lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge"]
        lines.append(f"{name}{{{labels}}} {float(value):.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write(path: str, state: Json, watch: Watch) -> None:
    """Put the file in place, readable by everybody. Raises OSError: its folder is not there.

    The collector reads *.prom: the name of the temp file ends otherwise.
    """
    with Folder(path) as folder:
        temp = f"{atomic.temp_name(os.path.basename(path))}.tmp"
        owner = Owner(0o644, os.geteuid(), os.getegid())
        atomic.replace(folder, render(state, watch, time.time()).encode(), owner, temp)
