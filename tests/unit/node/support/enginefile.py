"""node.json of a rig of two nodes on this machine's loopback, and one way to change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from node.engine.config import Engine, parse
from tests.unit.node.support.host import Host

UNIT = "rigbook-engine.service"


def document(url: str = "http://127.0.0.1:1", **changes: object) -> dict[str, Any]:
    """The file's content; keywords replace top-level keys."""
    return {
        "format": 1, "rig": "lab", "node": "lab1", "role": "head", "rank": 0, "unit": UNIT,
        "container": "rigbook-engine", "image": "rigbook/vllm-cpu:0.32.0",
        "fabric": {"device": "lo", "address": "127.0.0.1", "mtu": 9000, "wait_s": 1},
        "peers": ["127.0.0.2"], "master": {"address": "127.0.0.1", "port": 29501},
        "endpoint": {"url": url, "model": "tiny", "reasoning": False, "chat_template_kwargs": {}},
        "ports": [8000, 29501], "start_budget_s": 30, "needs_nvidia": False,
        "memory": {"gpu_memory_utilization": 0.9, "gpus": 0, "cpu_bytes": 1024},
        "weights": "/srv/models/tiny", **changes,
    }  # fmt: skip


def engine(**changes: Any) -> Engine:
    """The engine as node reads it."""
    return parse(document(**changes))


def engine_file(host: Host, **changes: Any) -> Path:
    """Writes the file where `host` looks for it."""
    path = host.root / "engine.json"
    path.write_text(json.dumps(document(**changes)))
    host.env["RIGBOOK_ENGINE"] = str(path)
    return path
