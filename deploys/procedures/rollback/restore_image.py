"""What restore has to do on a rig of containers: the image and what started it back on each node.

The rig is one thing: the backup that is named says which image, and every node gets that image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import ask_all
from deploys.common.load_and_gate import endpoint, once_a_run
from deploys.common.procedure import NOWHERE, Nodes, Procedure
from deploys.common.snapshot_view import live_profile
from deploys.procedures.measure.history import last_rates
from deploys.procedures.rollback.restore import LAST
from deploys.procedures.transfer import gone
from deploys.procedures.transfer.gone import Copy, Returning
from deploys.procedures.venv.backup import backups_of_all, describe
from gates.artifact.image import image_name
from node.rules.image_names import repository
from operations.engine.baseline import compared
from operations.engine.wait_ready import wait_for_answer
from operations.rollback.revert import RESTORE_TIMEOUT_S, recipe_baseline
from schema.observed.backup import BackupRow


@dataclass(frozen=True)
class ImageWork:
    """The backup of each node, what comes back there in lines, and which engines stop and start;
    all of it empty where nothing is to do.
    """

    rows: Mapping[str, BackupRow]
    words: Mapping[str, tuple[str, ...]]
    stops: Nodes
    starts: Nodes
    # the copies of those that are gone from their node
    back: Returning

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be proven."""
        return bool(self.starts.all)


@once_a_run
def plan(rig: Procedure, wanted: str) -> ImageWork:
    """The work of this run; DeployError where a node has no backup of the image, or refuses."""
    rows, copies = _chosen(rig, wanted)
    back = gone.returning(rig, copies)
    requests = {node: {"backup": row.id, "allow": ["older"], "dry": True}
                for node, row in rows.items() if node not in copies}  # fmt: skip
    seen = ask_all(rig.run.state, "image restore", requests, RESTORE_TIMEOUT_S)
    words = {node: _words(row, seen.get(node)) for node, row in rows.items()}
    for node, answer in seen.items():
        logger.info(f"    {node}: restore {describe(rows[node])}: {answer['detail']}")
        for line in answer["weights"]:
            logger.warning(f"    {node}: the weights are not as they were: {line}")
    changes = any(words.values())
    needed = changes or rig.up.all != rig.nodes.all
    stops, starts = rig.up if changes else NOWHERE, rig.nodes if needed else NOWHERE
    return ImageWork(rows, words, stops, starts, back)


def _words(row: BackupRow, answer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What comes back on a node, a line each; None: its backup is not there to be asked yet."""
    if answer is None:
        return (f"bring {row.tree} back from {row.id}; unit and files too",)
    image = (f"bring {row.tree} back from {row.id}",) if answer["unpacks"] else ()
    return (*image, *(f"{line}, as recorded" for line in answer["files"]))


def _chosen(rig: Procedure, wanted: str) -> tuple[dict[str, BackupRow], dict[str, Copy]]:
    """The backup of each node, and the copies of those that are gone from it: the one that is
    named, or the head's newest verified one of the recipe's image; on the others the one of the
    same image that was made nearest to it.
    """
    usable = {
        node: [r for r in seen.backups if r.usable and not r.problem and r.image]
        for node, seen in backups_of_all(rig).items()
    }
    named = _named(rig, wanted, usable)
    rows: dict[str, BackupRow] = {}
    copies: dict[str, Copy] = {}
    for node, seen in usable.items():
        here = [r for r in seen if _is_of(r, named) and (r.verified_unix_s or r.id == wanted)]
        if here:
            rows[node] = min(here, key=lambda r: _apart(r, named))
            continue
        away = [c for c in gone.copies_for(rig, node) if _is_of(c.row, named)]
        if not away:
            raise DeployError(
                f"{node}: no verified backup of the image of {named.id} ({named.tree}); bring it "
                "there while another node has it: deploys/image.py"
                f"{gone.elsewhere(rig, node, None)}"
            )
        copies[node] = min(away, key=lambda c: _apart(c.row, named))
        rows[node] = copies[node].row
    return rows, copies


def _named(rig: Procedure, wanted: str, usable: Mapping[str, list[BackupRow]]) -> BackupRow:
    """The backup that says which image; it may be gone from its node."""
    head = rig.plan.rig.head.name
    # what the recipe names now may be the nightly that is gone
    mine = repository(image_name(rig.plan) or "")
    if wanted == LAST:
        found = [r for r in usable[head] if r.verified_unix_s and r.real == mine]
    else:
        found = [r for seen in usable.values() for r in seen if r.id == wanted] or [
            c.row for node in usable for c in gone.copies_for(rig, node)
            if c.row.id == wanted and c.row.image
        ]  # fmt: skip
    if not found:
        known = ", ".join(r.id for r in usable[head][:5]) or "none"
        raise DeployError(
            f"{head}: no backup {wanted} of an image that can be used; known: {known}"
            f"{gone.elsewhere(rig, head, wanted)}"
        )
    return found[0]


def _is_of(row: BackupRow, other: BackupRow) -> bool:
    """Whether two backups have the same image."""
    return bool(row.image and other.image and row.image.content == other.image.content)


def _apart(row: BackupRow, other: BackupRow) -> tuple[bool, float]:
    """How far two backups are from being the same: other ids, and the seconds between them."""
    seconds = abs((row.created_unix_s or 0) - (other.created_unix_s or 0))
    return row.id != other.id, seconds


def verify(rig: Procedure, work: ImageWork) -> str:
    """A real answer of the engine on all nodes, and how fast it is."""
    where, head = endpoint(rig.plan), rig.plan.rig.head.name
    nodes = [node.name for node in rig.plan.rig.nodes]
    budget = rig.plan.recipe.expect.start_budget_s
    answer = wait_for_answer(rig.run.state, head, nodes, where, budget)
    profile = live_profile(rig.plan)
    before, published = last_rates(rig.plan, profile), recipe_baseline(rig.plan, profile)
    speed = compared(where.held_by_ours(), before, published, profile)
    return f"backup {work.rows[head].id} serves: {answer.detail}{speed}"
