"""What a reap would end on a host and what it would spare, and why: node's dry run, read-only."""

from __future__ import annotations

from typing import Any, ClassVar

from facts.rignode.fact import NodeFact


class Orphans(NodeFact[dict[str, Any]]):
    """Lists `ended` and `spared`, each with pid, argv0 and why; of a reap request."""

    verb = "reap"
    kind = dict
    always: ClassVar = {"dry": True, "change": None}
