"""An engine's files on a host: where a version of its venv lies, what a recipe patches in it;
read-only.
"""

from __future__ import annotations

from typing import Any

from facts.rignode.fact import NodeFact
from schema.observed.venv_versions import VenvPlace


class Place(NodeFact[VenvPlace]):
    """node's `venv look`: where a version of the venv lies or would lie."""

    verb = "venv look"
    kind = VenvPlace


class PatchedFiles(NodeFact[dict[str, Any]]):
    """node's `patch look`."""

    verb = "patch look"
    kind = dict
    # a file is read out of an image's layers on a cold disk
    timeout_s = 180
