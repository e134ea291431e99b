"""Whether a unit would be sound with another drop-in: node's `dropin`, read-only."""

from __future__ import annotations

import json
from typing import Any

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.rignode import pack
from facts.snapshot import SNAPSHOT_TIMEOUT_S, bounded


class DropInCheck(FactBase[dict[str, Any]]):
    """node's answer: `problems`, a line each, and `exec_start`, what the unit would start.

    A unit that cannot be extended (masked, not there) is a problem, too.
    """

    def command(self, request: str) -> str:
        """The one command; `request` is `{"unit", "path", "content"}` as JSON text."""
        return bounded(pack.inline_command("dropin", json.loads(request)), SNAPSHOT_TIMEOUT_S)

    def process(self, output: list[str]) -> dict[str, Any]:
        """The answer; FactProcessError when the host gave none."""
        try:
            answer = json.loads(output[-1])
        except (IndexError, ValueError):
            said = " ".join(output)[:300]
            raise FactProcessError(f"the host answered no check but: {said!r}") from None
        if not answer.get("ok"):
            raise FactProcessError(f"node dropin: {answer.get('error')}")
        return dict(answer)
