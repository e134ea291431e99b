"""The backups on a host, and what another one would store; read-only."""

from __future__ import annotations

from typing import ClassVar

from facts.rignode.fact import NodeFact
from schema.observed.backup import BackupPlan, Backups, Copies, PrunePlan


class TreeBackups(NodeFact[Backups]):
    """node's `tree list`."""

    verb = "tree list"
    kind = Backups


class TreeCopies(NodeFact[Copies]):
    """node's `tree copies`."""

    verb = "tree copies"
    kind = Copies


class TreeBackupPlan(NodeFact[BackupPlan]):
    """node's `tree backup` with `dry`, of its request without documents."""

    verb = "tree backup"
    kind = BackupPlan
    always: ClassVar = {"dry": True}
    # A walk over a venv of 100,000 files on a cold disk.
    timeout_s = 300


class TreePrunePlan(NodeFact[PrunePlan]):
    """node's `tree prune` with `dry`."""

    verb = "tree prune"
    kind = PrunePlan
    always: ClassVar = {"dry": True}
