"""report: one look at the rig, and what is kept of its measurements, written as two pages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyinfra import state

from deploys.common.load_and_gate import dry_run, remedy
from deploys.common.procedure import Procedure
from deploys.procedures.engine import doctor
from deploys.procedures.measure import history
from deploys.procedures.report.pages import Look, rig_page, runs_page
from deploys.procedures.report.state import moment
from facts.backups import TreeBackups
from facts.rignode.context import real
from facts.rignode.fact import ask_each
from schema.desired.plan import Plan
from schema.observed.backup import Backups
from schema.observed.snapshot import Unreadable


def _backups(plan: Plan) -> Mapping[str, Backups | Unreadable]:
    """Each node's backups; a Kubernetes rig has none of rigbook's."""
    if plan.runtime == "deployment":
        return {}
    return ask_each(real(state), plan, TreeBackups())


def _write(path: Path, text: str) -> None:
    """Replaces the file as a whole; its owner alone may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode())
    beside.replace(path)


def reported(rig: Procedure) -> Iterator[str]:
    """Looks, writes both pages, and tells where they are; DeployError when charts cannot be drawn.

    What blocks serving is told in the page, and is no error of this run.
    """
    plan = rig.plan
    folder = history.folder(plan.rig.name)
    if dry_run():
        yield f"would write {folder / 'rig.html'} and {folder / 'runs.html'}"
        return
    found = doctor.diagnose(rig)
    runs, unreadable = history.runs(plan.rig.name)
    at = moment(time.time())
    look = Look(
        at=at,
        plan=plan,
        observed=found.seen.observed,
        strips=doctor.strips_of(rig, found),
        findings=found.findings,
        remedy=remedy,
        backups=_backups(plan),
        runs=runs,
    )
    pages = {
        "rig.html": rig_page(look),
        "runs.html": runs_page(plan.rig.name, at, runs, unreadable),
    }
    for name, text in pages.items():
        _write(folder / name, text)
        yield f"wrote {folder / name}"
    yield from (f"left out {line}" for line in unreadable)
