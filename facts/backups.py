"""The backups on a host, and what another one would store; read-only."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.rignode import pack
from facts.snapshot import bounded
from schema.observed.backup import BackupPlan, Backups, PrunePlan

LIST_TIMEOUT_S = 60
# A walk over a venv of 100,000 files on a cold disk.
WALK_TIMEOUT_S = 300
Typed = TypeVar("Typed", bound=BaseModel)


def _answer(output: list[str], kind: type[Typed]) -> Typed:
    """The typed answer; FactProcessError says in one line what the host answered instead."""
    try:
        answer: dict[str, Any] = json.loads(output[-1])
        ok = answer.pop("ok")
    except (IndexError, ValueError, KeyError, AttributeError):
        said = " ".join(output)[:300] or "nothing in time"
        raise FactProcessError(f"the host answered no such thing but: {said}") from None
    if not ok:
        raise FactProcessError(f"{answer.get('error')}; {answer.get('remedy')}".removesuffix("; "))
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"the host's answer does not fit at {where}: {first['msg']}"
        raise FactProcessError(text) from None


class TreeBackups(FactBase[Backups]):
    """node's `tree list`."""

    def command(self) -> str:
        """The one command."""
        return bounded(pack.inline_command("tree list", {}), LIST_TIMEOUT_S)

    def process(self, output: list[str]) -> Backups:
        """The typed list."""
        return _answer(output, Backups)


class TreeBackupPlan(FactBase[BackupPlan]):
    """node's `tree backup` with `dry`; `request` is its request as JSON text, without documents:
    every user of the host can read a command line."""

    def command(self, request: str) -> str:
        """The one command."""
        wanted = {**json.loads(request), "dry": True}
        return bounded(pack.inline_command("tree backup", wanted), WALK_TIMEOUT_S)

    def process(self, output: list[str]) -> BackupPlan:
        """The typed plan."""
        return _answer(output, BackupPlan)


class TreePrunePlan(FactBase[PrunePlan]):
    """node's `tree prune` with `dry`; `request` is its request as JSON text."""

    def command(self, request: str) -> str:
        """The one command."""
        wanted = {**json.loads(request), "dry": True}
        return bounded(pack.inline_command("tree prune", wanted), LIST_TIMEOUT_S)

    def process(self, output: list[str]) -> PrunePlan:
        """The typed plan."""
        return _answer(output, PrunePlan)
