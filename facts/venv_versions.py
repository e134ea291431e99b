"""Where a version of an engine's venv lies or would lie on a host; read-only."""

from __future__ import annotations

import json

from pyinfra.api import FactBase

from facts.backups import _answer
from facts.rignode import pack
from facts.snapshot import bounded
from schema.observed.venv_versions import VenvPlace

LOOK_TIMEOUT_S = 60


class Place(FactBase[VenvPlace]):
    """node's `venv look`; `request` is its request as JSON text."""

    def command(self, request: str) -> str:
        """The one command."""
        return bounded(pack.inline_command("venv look", json.loads(request)), LOOK_TIMEOUT_S)

    def process(self, output: list[str]) -> VenvPlace:
        """The typed answer."""
        return _answer(output, VenvPlace)
