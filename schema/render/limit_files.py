"""What lands on a host to guard what gpu_limit set: the values, and the guard's units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from schema.desired.plan import Document, Plan
from schema.render.engine_files import UNITS_DIR, render

FORMAT = 1
STATE_PATH = "/etc/rigbook/limit.json"
GUARD_TIMER = "rigbook-limit.timer"
UNIT_FILES = tuple(f"{UNITS_DIR}/{name}" for name in ("rigbook-limit.service", GUARD_TIMER))
FILES = ("/etc/rigbook", STATE_PATH, *UNIT_FILES)


class Told(Protocol):
    """Whom the guard tells: schema.inputs.cluster_runbook_data.GpuLimitData."""

    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...


def limit_documents(
    plan: Plan, data: Told, container: str, values: Mapping[str, str], edits: Mapping[str, str]
) -> tuple[Document, ...]:
    """The guarded values and texts of one container (root's alone: it may hold the webhook), the
    units.
    """
    chart = plan.chart
    body = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": plan.rig.head.name,
        "kubectl": chart.kubectl,
        "kubeconfig": chart.kubeconfig,
        "namespace": chart.namespace,
        "deployment": chart.deployment,
        "container": container,
        "set": dict(values),
        "edit": dict(edits),
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
    }
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"
    what = f"{chart.namespace}/{chart.deployment}"
    units = (Document(path, render(path, deployment=what), "0644") for path in UNIT_FILES)
    return (Document(STATE_PATH, text, "0600"), *units)
