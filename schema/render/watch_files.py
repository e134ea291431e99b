"""The files of a watch: what is asked, how often, and who is told (node/watch/config.py reads
it).
"""

from __future__ import annotations

import json
from typing import Protocol

from schema.desired.plan import Document, Plan
from schema.render.engine_files import UNITS_DIR, render
from schema.render.node_json import endpoint

FORMAT = 1
WATCH_SERVICE = "rigbook-watch.service"
WATCH_TIMER = "rigbook-watch.timer"
WATCH_PATH = "/etc/rigbook/watch.json"
SERVICE_PATH = f"{UNITS_DIR}/{WATCH_SERVICE}"
TIMER_PATH = f"{UNITS_DIR}/{WATCH_TIMER}"


class Watching(Protocol):
    """What watch is asked for: schema.inputs.runbook_data.WatchData."""

    @property
    def url(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def misses(self) -> int: ...
    @property
    def repeat_s(self) -> int: ...
    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...
    @property
    def interval(self) -> int: ...


def watch_documents(plan: Plan, node: str, data: Watching) -> tuple[Document, ...]:
    """What lands on the node that watches: its configuration (root's alone), service and timer."""
    asked = endpoint(plan.rig, plan.recipe)
    if data.url is not None:
        asked["url"] = data.url.rstrip("/")
    if data.model is not None:
        asked["model"] = data.model
    document = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": node,
        "endpoint": asked,
        "misses": data.misses,
        "repeat_s": data.repeat_s,
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
    }
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    values = {"rig": plan.rig.name, "interval": data.interval}
    return (
        Document(WATCH_PATH, text, "0600"),
        Document(SERVICE_PATH, render(SERVICE_PATH, **values), "0644"),
        Document(TIMER_PATH, render(TIMER_PATH, **values), "0644"),
    )
