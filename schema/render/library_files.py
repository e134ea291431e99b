"""What lands on a host beside a swapped library: what is known of it, and the guard's units."""

from __future__ import annotations

import json
from typing import Protocol

from schema.desired.plan import Document, Plan
from schema.render.engine_files import UNITS_DIR, render

FORMAT = 1
STATE_PATH = "/etc/rigbook/library.json"
GUARD_SERVICE = "rigbook-library.service"
GUARD_PATH = "rigbook-library.path"
GUARD_TIMER = "rigbook-library.timer"
UNITS = (GUARD_SERVICE, GUARD_PATH, GUARD_TIMER)
UNIT_FILES = tuple(f"{UNITS_DIR}/{name}" for name in UNITS)
FILES = ("/etc/rigbook", STATE_PATH, *UNIT_FILES)


class Guarding(Protocol):
    """What libvgpu is asked for: schema.inputs.cluster_runbook_data.LibvgpuData."""

    @property
    def guard(self) -> bool: ...
    @property
    def reapply(self) -> bool: ...
    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...


def library_documents(
    plan: Plan, data: Guarding, target: str, original: str, ours: str
) -> tuple[Document, ...]:
    """The state of a swap (root's alone: it may hold the webhook) and, with `guard`, its units."""
    body = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": plan.rig.head.name,
        "target": target,
        "original": original,
        "ours": ours,
        "guard": data.guard,
        "reapply": data.reapply,
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
    }
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"
    documents = (Document(STATE_PATH, text, "0600"),)
    if not data.guard:
        return documents
    units = (Document(path, render(path, library=target), "0644") for path in UNIT_FILES)
    return (*documents, *units)
