"""upgrade: another version of a venv's engine, beside the one that serves; any failure goes back.

Runbook: docs/runbooks/upgrade.md. Data: version (else the recipe's venv.version), profile, waive +
reason; inplace=true installs into the venv that serves; prune=true removes versions nobody needs.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.venv.upgrade import (
    checked,
    decide,
    installed,
    measured,
    patched,
    proof,
    returned,
    switched,
    would_prune,
)
from gates.gate_sets import CHANGING, UPGRADING
from operations.change.run import Run
from operations.engine import engine
from operations.venv import backup, upgrade
from schema.inputs.runbook_data import UpgradeData

# Load: what the rig is, and which version is wanted.
plan = load()
made = once("backups made", dict)

# Gate: what is known of that version here, what pip would do, whether there is room.
if operator_data(UpgradeData).prune:
    gate(plan, CHANGING)
    node, request, found = would_prune(state, plan)
    if host.name == node:
        upgrade.prune(name="Remove versions that nobody needs", request=request, found=found)
else:
    snapshots, waivers = gate(plan, UPGRADING)
    work = decide(state, plan, snapshots, waivers)
    run = work.run(lambda: Run(state, "upgrade", plan, work.waivers, returned))
    needed = work.is_needed
    folder = work.place.folder

    # Act: measure and back up; install, patch and check beside; then stop, switch, start.
    IDLE = f"{work.package} {work.now} is the active version already"
    upgrade.task(
        name="Measure what it does now",
        run=run,
        label="baseline",
        plan=["measure tokens a second, one stream"] if needed else [],
        work=lambda: measured(plan, work, run, made),
        idle=IDLE,
    )
    if work.backup is not None:
        backup.back_up(
            name="Back the installation up",
            request=work.backup_request,
            found=work.backup,
            done=made,
        )
        backup.verify(name="Read it back", ids=[], made=made, pending=work.backup.stored)
    engine.stop(
        name="Stop the engine first", run=run, nodes=work.nodes(work.runs and work.stop_first)
    )
    upgrade.task(
        name="Install the version in place" if work.inplace else "Install the version beside",
        run=run,
        label="install",
        plan=[f"install {work.package} {work.wanted} into {folder}"] if needed else [],
        work=lambda: installed(plan, work, run),
        idle=IDLE,
    )
    upgrade.task(
        name="Patch it",
        run=run,
        label="patch",
        plan=["bring the recipe's patches into force there"] if needed else [],
        work=lambda: patched(plan, work, run),
        idle=IDLE,
    )
    upgrade.task(
        name="Import it and execute its program",
        run=run,
        label="check",
        plan=[f"import {work.package}, {folder}/bin/{work.package} --version"] if needed else [],
        work=lambda: checked(work, run),
        idle=IDLE,
    )
    engine.stop(
        name="Stop the engine", run=run, nodes=work.nodes(work.runs and not work.stop_first)
    )
    upgrade.task(
        name="Switch to it by one rename",
        run=run,
        label="switch",
        plan=[f"{work.venv}: {work.place.link or 'a folder'} -> {folder}"]
        if needed and not work.inplace
        else [],
        work=lambda: switched(work, run),
        idle="it was installed in place" if work.inplace and needed else IDLE,
    )
    engine.configure(
        name="Write the launch script, the environment and the unit",
        run=run,
        steps=work.documents,
        members=work.nodes(bool(work.documents)),
        files=work.files,
    )
    engine.start(name="Start the engine", run=run, nodes=work.nodes(True))

    # Verify: a real answer at the former speed blesses the change; else it goes back by itself.
    if host.name == work.node:
        engine.prove(
            name="A real chat completion, at the former speed",
            run=run,
            needed=needed,
            check=lambda: proof(plan, work, run),
        )
