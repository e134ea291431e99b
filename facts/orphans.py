"""What a reap would end on a host and what it would spare, and why: node's dry run, read-only."""

from __future__ import annotations

import json
from typing import Any

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.rignode import pack
from facts.snapshot import SNAPSHOT_TIMEOUT_S, bounded


class Orphans(FactBase[dict[str, Any]]):
    """node's `reap` with `dry`: lists `ended` and `spared`, each with pid, argv0 and why."""

    def command(self, request: str) -> str:
        """The one command; `request` is the reap request as JSON text."""
        wanted = {**json.loads(request), "dry": True, "change": None}
        return bounded(pack.inline_command("reap", wanted), SNAPSHOT_TIMEOUT_S)

    def process(self, output: list[str]) -> dict[str, Any]:
        """The answer; FactProcessError when the host gave none."""
        try:
            answer = json.loads(output[-1])
        except (IndexError, ValueError):
            said = " ".join(output)[:300]
            raise FactProcessError(f"the host answered no list but: {said!r}") from None
        if not answer.get("ok"):
            raise FactProcessError(f"node reap: {answer.get('error')}")
        return dict(answer)
