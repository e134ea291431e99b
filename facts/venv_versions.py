"""Where a version of an engine's venv lies or would lie on a host; read-only."""

from __future__ import annotations

from facts.rignode.fact import NodeFact
from schema.observed.venv_versions import VenvPlace


class Place(NodeFact[VenvPlace]):
    """node's `venv look`."""

    verb = "venv look"
    kind = VenvPlace
