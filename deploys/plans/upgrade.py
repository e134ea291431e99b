"""What an upgrade has to do on a venv's rig, planned once from one observation; its proof."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans import backup as plans_backup
from deploys.plans import engine, patch
from deploys.plans.engine import (
    ask_all,
    ask_pip,
    known_versions,
    pip_args,
    preflight,
    venv_of,
    wheels_spec,
)
from deploys.plans.measure import last_rates
from deploys.plans.rig import Procedure, endpoint, files_in, gate_here, is_up, once_a_run, remedy
from facts.endpoint import Endpoint
from facts.looks import Place
from facts.node import fact_of, observe
from gates.artifact import wheels, would_install
from gates.core import blocking
from gates.processes import engine_unit
from node.rules.secret import SECRETS_PATH
from node.rules.text import same_version
from operations import engine as operations_engine
from operations.apply import Steps, texts_of
from operations.engine import fast_enough
from operations.rollback import revert_change
from operations.run import Run, StepFailed
from operations.venv import PatchSteps, Version, rounds_of, wait_with_retries
from schema.artifact import BackupPlan, VenvPlace, VenvPrunePlan, VenvWheels, parse_pip_report
from schema.compatibility import satisfies
from schema.keys import UpgradeData

MIB = 1 << 20
# pip unpacks wheels of a gigabyte beside an engine that serves.
MEMORY_BESIDE = 1 << 30
# The sizes of several venvs of 60,000 files on a cold disk.
PRUNE_TIMEOUT_S = 300


@dataclass(frozen=True)
class UpgradeWork:
    """One upgrade on the rig's one node; with `version` None it is active already.

    `recorded` are the rounds of the last bench, tokens a second. The engine stops before pip where
    pip needs its memory, else after the new version has been executed. `waive` are the codes that
    the operator waives. `resumed`: the run goes on in a change that was cut off.
    """

    node: str
    wanted: str
    endpoint: Endpoint
    version: Version | None = None
    now: str = ""
    recorded: tuple[float, ...] = ()
    is_up: bool = False
    stops_before_install: bool = False
    pip_args: tuple[str, ...] = ()
    patches: int = 0
    backup_request: Mapping[str, Any] = field(default_factory=dict)
    backup: BackupPlan | None = None
    backups: dict[str, str] = field(default_factory=dict)
    documents: Steps = field(default_factory=list)
    before: Mapping[str, str | None] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    waive: tuple[str, ...] = ()
    resumed: bool = False

    @property
    def nodes(self) -> frozenset[str]:
        """The node, where a version comes to it, or a run that was cut off left it stopped."""
        return frozenset({self.node}) if self.version or self.resumed else frozenset()

    @property
    def nodes_up(self) -> frozenset[str]:
        """The node, where its engine is to be stopped."""
        return self.nodes if self.is_up else frozenset()

    @property
    def room_bytes(self) -> int:
        """What the version may need on the disk: about what the present one has."""
        return self.backup.apparent_bytes if self.backup else 0


@dataclass(frozen=True)
class Surplus:
    """The versions that nobody needs: what `venv prune` takes, and what it would remove."""

    request: dict[str, str]
    found: VenvPrunePlan


@once_a_run
def plan(rig: Procedure) -> UpgradeWork:
    """The work of this run; DeployError when a gate blocks or a host cannot tell."""
    plan, state, data = rig.plan, rig.run.state, rig.data(UpgradeData)
    if plan.recipe.venv is None:
        raise DeployError(
            f"recipe {plan.recipe.name} runs in a container: its engine is upgraded by another "
            "image digest in the recipe, then deploys/serve.py"
        )
    node = plan.rig.head.name
    wanted = data.version or plan.recipe.venv.version
    if wanted is None:
        raise DeployError(
            f"no version named, and recipe {plan.recipe.name} has no venv.version; "
            "allowed: --data version=0.32.0"
        )
    spec, venv = wheels_spec(plan), str(venv_of(plan, node))
    seen = inspect_place(state, node, venv, spec.package, wanted)
    here = seen.installed[0] if len(seen.installed) == 1 else ""
    if same_version(wanted, here) or (data.version is None and satisfies(here, wanted)):
        logger.info(f"    {venv} leads to {spec.package} {here} already")
        return UpgradeWork(node, wanted, endpoint(plan), resumed=rig.run.resumed)
    found = known_versions(wanted, plan, observe(state, plan))
    pip = ask_pip(state, plan, wanted, {node: venv})
    found += [*wheels(plan, spec, wanted, pip), *engine.secret_findings(plan)]
    rig.run.waivers = (*rig.waivers, *gate_here(found))
    exact = would_install(spec, pip[node]) or wanted
    place = inspect_place(state, node, venv, spec.package, exact)
    snapshot = rig.snapshots[node]
    request = plans_backup.request(plan, node, venv, snapshot)
    backup = plans_backup.inspect(state, state.inventory.get_host(node), request)
    _room(node, place, backup)
    unit, files = engine_unit(snapshot), files_in(snapshot)
    available = getattr(snapshot.memory, "available", None)
    secret, notes = engine.secret_steps(plan, node, files.get(SECRETS_PATH))
    documents = operations_engine.file_steps(plan.documents[node], files) + secret
    work = UpgradeWork(
        node=node,
        wanted=exact,
        endpoint=endpoint(plan),
        version=Version(venv, spec.package, exact, place.folder, place.link),
        now=", ".join(seen.installed) or "of no version",
        recorded=last_rates(plan, plan.profile),
        is_up=is_up(unit),
        stops_before_install=available is not None and available < MEMORY_BESIDE,
        pip_args=tuple(pip_args(plan)),
        patches=patch.count(plan),
        backup_request=request,
        backup=backup,
        documents=documents + operations_engine.unit_steps(unit, bool(documents)),
        before=texts_of(files),
        notes=notes,
        waive=data.waive,
    )
    # For whoever undoes it; the backup's id comes in before the change is opened.
    rig.run.context.update(
        {"from": work.now, "to": exact, "was": place.real, "backup": work.backups}
    )
    _report(state, work, place, pip[node], backup)
    return work


@once_a_run
def plan_prune(rig: Procedure) -> Surplus:
    """What a prune would remove; DeployError when the host cannot tell."""
    plan, state, node = rig.plan, rig.run.state, rig.plan.rig.head.name
    if plan.recipe.venv is None:
        raise DeployError(f"recipe {plan.recipe.name} runs in a container: it has no versions")
    request = {"venv": str(venv_of(plan, node)), "package": wheels_spec(plan).package}
    dry = {node: {**request, "dry": True}}
    answer = ask_all(state, "venv prune", dry, PRUNE_TIMEOUT_S)[node]
    return Surplus(request, VenvPrunePlan.model_validate(answer))


def inspect_place(state: State, node: str, venv: str, package: str, version: str) -> VenvPlace:
    """Where a version lies or would lie; DeployError when the host cannot tell."""
    request = json.dumps({"venv": venv, "package": package, "version": version})
    found: VenvPlace | None = fact_of(state, state.inventory.get_host(node), Place, request)
    if found is None:
        raise DeployError(f"{node}: {venv} cannot be looked at; the line above says why")
    return found


def _room(node: str, place: VenvPlace, backup: BackupPlan) -> None:
    need = 0 if place.found else backup.apparent_bytes
    if place.free_bytes < need * 1.02:
        raise DeployError(
            f"{node}: no room beside {place.venv}: {place.free_bytes / MIB:.0f} MiB are free, "
            f"about {need / MIB:.0f} MiB are needed; deploys/upgrade.py --data prune=true removes "
            "versions that nobody needs, deploys/backup.py --data prune=true older backups"
        )


def _report(
    state: State, work: UpgradeWork, place: VenvPlace, pip: VenvWheels, backup: BackupPlan
) -> None:
    """The plan for a person; with --diff all that pip would install."""
    report = parse_pip_report(pip.wanted) if pip.wanted else None
    count = len(report.install) if report else 0
    size = backup.apparent_bytes / MIB
    package = work.version.package if work.version else ""
    logger.info(f"    {package} {work.now} -> {work.wanted}, in {place.folder}")
    if place.found:
        logger.info("    it is there already, whole: nothing is installed")
    else:
        logger.info(
            f"    pip would install {count} distributions, about {size:.0f} MiB of "
            f"{place.free_bytes / MIB:.0f} MiB free"
        )
        for folder in place.partial:
            logger.info(f"    {folder} is of an installation that was cut off: made anew")
    kept = backup.backup if not backup.stored else f"a new one, {size:.0f} MiB before zstd"
    logger.info(f"    backup: {kept}; the present version stays in {place.real}")
    if state.config.DIFF and report and not place.found:
        for item in report.install:
            logger.info(f"        {item.metadata.name} {item.metadata.version}")


def inspect_patches(rig: Procedure, work: UpgradeWork) -> PatchSteps:
    """What the new version lacks of the recipe's patches."""
    return patch.inspect_beside(rig.run.state, rig.plan, work.node, _folder(work))


def verify_patches(rig: Procedure, work: UpgradeWork) -> str:
    """A line that says that all of them are in force there."""
    folder = _folder(work)
    return patch.verify(rig.run.state, rig.plan, {work.node: folder}, f"in {folder}")


def _folder(work: UpgradeWork) -> str:
    assert work.version is not None  # the operation does nothing without one
    return work.version.folder


def ask_parser(rig: Procedure, work: UpgradeWork) -> str:
    """A line about what the version that has come says of its command line; StepFailed when it
    refuses it, and nobody has waived that.
    """
    found = preflight(rig.run.state, rig.plan, "upgrade", {work.node: _folder(work)})
    refused = [v for v in blocking(found) if v.code not in work.waive]
    if refused:
        raise StepFailed(f"{refused[0].summary}; mend it with: {remedy(refused[0])}")
    return "; ".join(v.summary for v in found) or f"{work.wanted} takes the command line"


def verify(rig: Procedure, work: UpgradeWork) -> str:
    """A real answer and its speed; StepFailed for none, or for one that is too slow."""
    run, recipe = rig.run, rig.plan.recipe
    detail = wait_with_retries(run, work.node, work.endpoint, recipe.expect.start_budget_s)
    before, say = rounds_of(run), run.host(work.node).log
    speed = fast_enough(work.endpoint.held_by_ours(), before, recipe.expect.tolerance, say)
    named = recipe.venv.version if recipe.venv else None
    package = wheels_spec(rig.plan).package
    to_write = ""
    if named is not None and not satisfies(work.wanted, named):
        to_write = (
            f"; write venv.version: {work.wanted} into catalog/recipes/{recipe.name}.yaml "
            f"(it says {named})"
        )
    return f"{package} {work.wanted} serves: {detail}; {speed}{to_write}"


def revert(run: Run) -> str:
    """The automatic return: the change undone, the former version proven, the reason kept."""
    why = run.failure or "a step failed"
    return revert_change(run.state, run.plan, run.id, run.touched, reason=why, run=run.owner.token)
