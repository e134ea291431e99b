"""What an upgrade has to do on a venv's rig, decided once from one observation, and its parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.procedures.venv import backup as venv_backup
from deploys.common.ask_engine import ask_pip, known_versions, pip_args, venv_of, wheels_spec
from deploys.common.snapshot_view import engine_unit, files_in, is_up
from deploys.procedures.venv.newpatches import patch_into
from deploys.common.load_and_gate import endpoint, once, operator_data, stand
from facts.rignode.call import AskFailed, ask_node
from facts.endpoint.completion import ask
from facts.observe import fact_of, observe, real
from facts.endpoint.throughput import NotMeasured, measure
from facts.venv_versions import Place
from gates.artifact.pip_plan import wheels, would_install
from operations.engine import engine
from operations.venv import upgrade
from operations.engine.baseline import fast_enough
from operations.engine.engine import Steps
from operations.rollback.revert import revert_change, recipe_baseline
from operations.change.run import Run
from schema.inputs.runbook_data import UpgradeData
from schema.observed.backup import BackupPlan
from schema.desired.plan import Plan
from schema.observed.pip_report import VenvWheels, parse
from schema.observed.files import FileState
from schema.observed.snapshot import NodeSnapshot
from schema.observed.venv_versions import VenvPlace, VenvPrunePlan, same_version

MIB = 1 << 20
# pip unpacks wheels of a gigabyte beside an engine that serves.
MEMORY_BESIDE = 1 << 30
ASK_S = 30.0
# The sizes of several venvs of 60,000 files on a cold disk.
PRUNE_TIMEOUT_S = 300


@dataclass(frozen=True)
class UpgradeWork:
    """One upgrade on the rig's one node; with `is_needed` False nothing is to do."""

    node: str
    venv: str
    package: str
    wanted: str
    now: str
    place: VenvPlace
    waivers: tuple[tuple[str, str], ...] = ()
    is_needed: bool = False
    runs: bool = False
    stop_first: bool = False
    inplace: bool = False
    backup_request: Mapping[str, Any] = field(default_factory=dict)
    backup: BackupPlan | None = None
    documents: Steps = field(default_factory=list)
    files: Mapping[str, FileState] = field(default_factory=dict)
    _run: list[Run] = field(default_factory=list)

    def run(self, make: Callable[[], Run]) -> Run:
        """The one change of this run."""
        if not self._run:
            self._run.append(make())
        return self._run[0]

    @property
    def request(self) -> dict[str, Any]:
        """What node's `venv look` takes, and `venv install` besides."""
        return {"venv": self.venv, "package": self.package, "version": self.wanted}

    def nodes(self, when: bool) -> frozenset[str]:
        """The node, where a step of this run is to be done on it."""
        return frozenset({self.node}) if self.is_needed and when else frozenset()


def decide(
    state: State,
    plan: Plan,
    snapshots: Mapping[str, NodeSnapshot],
    waivers: tuple[tuple[str, str], ...],
) -> UpgradeWork:
    """The work of this run; DeployError when a gate blocks or a host cannot tell."""
    return once("upgrade", lambda: _decide(real(state), plan, snapshots, waivers))


def _decide(
    state: State,
    plan: Plan,
    snapshots: Mapping[str, NodeSnapshot],
    waivers: tuple[tuple[str, str], ...],
) -> UpgradeWork:
    if plan.recipe.venv is None:
        raise DeployError(
            f"recipe {plan.recipe.name} runs in a container: its engine is upgraded by another "
            "image digest in the recipe, then deploys/serve.py"
        )
    node = plan.rig.head.name
    wanted = operator_data(UpgradeData).version or plan.recipe.venv.version
    if wanted is None:
        raise DeployError(
            f"no version named, and recipe {plan.recipe.name} has no venv.version; "
            "allowed: --data version=0.32.0"
        )
    spec, venv = wheels_spec(plan), str(venv_of(plan, node))
    inplace = operator_data(UpgradeData).inplace
    seen = look(state, plan, node, venv, spec.package, wanted)
    if len(seen.installed) == 1 and same_version(wanted, seen.installed[0]):
        logger.info(f"    {venv} leads to {spec.package} {seen.installed[0]} already")
        return UpgradeWork(node, venv, spec.package, wanted, seen.installed[0], seen)
    found = known_versions(wanted, plan, observe(state, plan))
    pip = ask_pip(state, plan, wanted, {node: venv}, fresh=not inplace)
    # This run makes a verified backup before it changes anything.
    found += wheels(plan, spec, wanted, pip, {node: True})
    waived = stand(found)
    exact = would_install(spec, pip[node]) or wanted
    place = look(state, plan, node, venv, spec.package, exact)
    if inplace:
        place = place.model_copy(update={"found": None, "folder": place.real})
    request = venv_backup.request(plan, node, venv, snapshots[node])
    backup = venv_backup.look(state, state.inventory.get_host(node), request)
    _room(node, place, backup, inplace)
    unit = engine_unit(snapshots[node])
    available = getattr(snapshots[node].memory, "available", None)
    files = files_in(snapshots[node])
    documents = engine.file_steps(plan.documents[node], files)
    work = UpgradeWork(
        node=node,
        venv=venv,
        package=spec.package,
        wanted=exact,
        now=", ".join(seen.installed) or "of no version",
        place=place,
        waivers=(*waivers, *waived),
        is_needed=True,
        runs=is_up(unit),
        # In place nothing may run from the files that pip changes.
        stop_first=inplace or (available is not None and available < MEMORY_BESIDE),
        inplace=inplace,
        backup_request=request,
        backup=backup,
        documents=documents + engine.unit_steps(unit, bool(documents)),
        files=files,
    )
    _show(state, work, pip[node], backup)
    return work


def would_prune(state: State, plan: Plan) -> tuple[str, dict[str, str], VenvPrunePlan]:
    """The node, the request and the plan of a prune; DeployError when the host cannot tell."""
    return once("versions to prune", lambda: _would_prune(real(state), plan))


def _would_prune(state: State, plan: Plan) -> tuple[str, dict[str, str], VenvPrunePlan]:
    if plan.recipe.venv is None:
        raise DeployError(f"recipe {plan.recipe.name} runs in a container: it has no versions")
    node = plan.rig.head.name
    request = {"venv": str(venv_of(plan, node)), "package": wheels_spec(plan).package}
    host, dry = state.inventory.get_host(node), {**request, "dry": True}
    try:
        answer = ask_node(state, host, "venv prune", dry, PRUNE_TIMEOUT_S)
    except AskFailed as error:
        raise DeployError(str(error)) from None
    return node, request, VenvPrunePlan.model_validate(answer)


def look(state: State, plan: Plan, node: str, venv: str, package: str, version: str) -> VenvPlace:
    """Where a version lies or would lie; DeployError when the host cannot tell."""
    request = json.dumps({"venv": venv, "package": package, "version": version})
    found = fact_of(state, state.inventory.get_host(node), Place, request, _sudo=True)
    if found is None:
        raise DeployError(f"{node}: {venv} cannot be looked at; the line above says why")
    return found  # type: ignore[no-any-return]


def _room(node: str, place: VenvPlace, backup: BackupPlan, inplace: bool) -> None:
    # In place the room is for the way back: the backup is unpacked beside.
    need = 0 if place.found else backup.apparent_bytes
    if place.free_bytes < need * 1.02:
        why = " to restore the backup in" if inplace else ""
        raise DeployError(
            f"{node}: no room{why} beside {place.venv}: {place.free_bytes / MIB:.0f} MiB are free, "
            f"about {need / MIB:.0f} MiB are needed; deploys/upgrade.py --data prune=true removes "
            "versions that nobody needs, deploys/backup.py --data prune=true older backups"
        )


def _show(state: State, work: UpgradeWork, pip: VenvWheels, backup: BackupPlan) -> None:
    """The plan for a person; with --diff all that pip would install."""
    report = parse(pip.wanted) if pip.wanted else None
    count = len(report.install) if report else 0
    size = backup.apparent_bytes / MIB
    how = "the venv itself is changed, engine stopped; " if work.inplace else ""
    logger.info(f"    {work.package} {work.now} -> {work.wanted}, {how}in {work.place.folder}")
    if work.place.found:
        logger.info("    it is there already, whole: nothing is installed")
    else:
        logger.info(
            f"    pip would install {count} distributions, about {size:.0f} MiB of "
            f"{work.place.free_bytes / MIB:.0f} MiB free"
        )
        for folder in work.place.partial:
            logger.info(f"    {folder} is of an installation that was cut off: made anew")
    kept = backup.backup if not backup.stored else f"a new one, {size:.0f} MiB before zstd"
    back = f"the present version stays in {work.place.real}"
    if work.inplace:
        back = "the way back is its restore, and takes as long"
    logger.info(f"    backup: {kept}; {back}")
    if state.config.DIFF and report and not work.place.found:
        for item in report.install:
            logger.info(f"        {item.metadata.name} {item.metadata.version}")


def measured(plan: Plan, work: UpgradeWork, run: Run, made: Mapping[str, str]) -> str:
    """The baseline: measured now, else the recipe's; kept in the change for whoever undoes it.

    `made`: the backup's id by host, which is filled in before the change is opened.
    """
    run.context.update({"from": work.now, "to": work.wanted, "was": work.place.real, "backup": made})
    where = endpoint(plan)
    answer = ask(where, ASK_S) if work.runs else None
    if answer is None or not answer.ok:
        value = recipe_baseline(plan)
        run.context["baseline"] = value
        told = f"the recipe's {value:.1f} tok/s" if value else "none: nothing to compare with"
        return f"the engine does not answer; baseline: {told}"
    try:
        rate = measure(where)
    except NotMeasured as error:
        run.context["baseline"] = recipe_baseline(plan)
        return f"the engine answers and could not be measured: {error}"
    run.context["baseline"] = round(rate.tokens_per_s, 2)
    return f"baseline: {rate}"


def installed(plan: Plan, work: UpgradeWork, run: Run) -> str:
    """Installs the version, beside or in place; the line to tell."""
    room = work.backup.apparent_bytes if work.backup else 0
    request = {**work.request, "pip_args": pip_args(plan)}
    if work.inplace:
        made = dict(run.context["backup"])  # type: ignore[call-overload]
        answer = upgrade.replace(run, work.node, {**request, "backup": made[work.node]})
    else:
        answer = upgrade.install(run, work.node, {**request, "room_bytes": room})
    left = ", ".join(answer["left_behind"])
    told = f"; not carried over from the former: {left}" if left else ""
    return f"{answer['folder']} is whole after {answer['took_s']:.0f} s{told}"


def patched(plan: Plan, work: UpgradeWork, run: Run) -> str:
    """The recipe's patches in the new folder, before anything leads there."""
    return patch_into(plan, run, work.node, work.place.folder)


def checked(work: UpgradeWork, run: Run) -> str:
    """The new version imports, and its program runs."""
    return upgrade.runs(run.state, run.host(work.node), work.place.folder, work.package)


def switched(work: UpgradeWork, run: Run) -> str:
    """One rename makes the new version the active one."""
    steps = upgrade.switch_steps(work.venv, work.place.link, work.place.folder, run.id)
    run.apply(work.node, steps)
    return f"{work.venv} leads to {work.place.folder}"


def proof(plan: Plan, work: UpgradeWork, run: Run) -> str:
    """A real answer and its speed; StepFailed for none, or for one that is too slow."""
    where, expect = endpoint(plan), plan.recipe.expect
    detail = upgrade.answers_within(run, work.node, where, expect.start_budget_s)
    value = run.context.get("baseline")
    baseline = float(str(value)) if value is not None else None
    say = run.host(work.node).log
    speed = fast_enough(where, baseline, expect.tolerance, say)
    named = plan.recipe.venv.version if plan.recipe.venv else None
    recipe = ""
    if named is not None and not same_version(named, work.wanted):
        recipe = (
            f"; write venv.version: {work.wanted} into catalog/recipes/{plan.recipe.name}.yaml "
            f"(it says {named})"
        )
    return f"{work.package} {work.wanted} serves: {detail}; {speed}{recipe}"


def returned(run: Run) -> str:
    """The automatic return: the change undone, the former version proven, the reason kept."""
    why = run.failure or "a step failed"
    return revert_change(run.state, run.plan, run.id, run.touched, reason=why)
