"""upgrade: another version of a venv's engine, beside the one that serves, or back to that one.

Runbook: docs/runbooks/upgrade.md. Data: version (else the recipe's venv.version), profile, waive +
reason; prune=true removes versions nobody needs.
"""

from pyinfra import host

from deploys.plans import engine, upgrade
from deploys.plans.rig import loaded
from gates.gate_sets import CHANGING, UPGRADING
from operations import engine as operations_engine
from operations import venv
from operations.apply import apply
from schema.keys import UpgradeData

# Load: what the rig is, and which version is wanted.
rig = loaded("upgrade", revert=upgrade.revert)
is_prune = rig.data(UpgradeData).prune

# Gate: what is known of that version here, what pip would do, whether there is room.
rig.gate(CHANGING if is_prune else (*UPGRADING, *engine.below()))

# Act, with prune=true: the versions that nobody needs go; nothing else is touched.
if is_prune and rig.at_head:
    surplus = upgrade.plan_prune(rig)
    venv.prune_versions(
        name="Remove versions that nobody needs", request=surplus.request, found=surplus.found
    )

# Act: measure and back up; install, patch and check beside; then stop, switch, start.
if not is_prune:
    work = upgrade.plan(rig)
    venv.measure(
        name="Measure what it does now",
        run=rig.run,
        needed=work.version is not None,
        endpoint=work.endpoint,
        is_up=work.is_up,
        recorded=work.recorded,
    )
    if work.backup is not None:
        venv.back_up(
            name="Back the installation up",
            request=work.backup_request,
            found=work.backup,
            done=work.backups,
        )
        venv.verify_backup(
            name="Read it back", ids=[], made=work.backups, pending=work.backup.stored
        )
    if work.stops_before_install:
        operations_engine.stop(
            name="Stop the engine: pip needs its memory", run=rig.run, nodes=work.nodes_up
        )
    venv.install(
        name="Install the version beside",
        run=rig.run,
        version=work.version,
        pip_args=work.pip_args,
        room_bytes=work.room_bytes,
    )
    venv.patch(
        name="Patch it",
        run=rig.run,
        version=work.version,
        count=work.patches,
        inspect=lambda: upgrade.inspect_patches(rig, work),
        verify=lambda: upgrade.verify_patches(rig, work),
    )
    venv.check(name="Import it and execute its program", run=rig.run, version=work.version)
    operations_engine.ask_preflight(
        name="Ask its parser about the command line",
        run=rig.run,
        nodes={work.node} if work.version else (),
        check=lambda: upgrade.ask_parser(rig, work),
    )
    if not work.stops_before_install:
        operations_engine.stop(
            name="Stop the engine, which served so far", run=rig.run, nodes=work.nodes_up
        )
    venv.switch(name="Switch to it by one rename", run=rig.run, version=work.version)
    apply(
        name="Write the launch script, the environment and the unit",
        run=rig.run,
        label="configure",
        steps=work.documents,
        members=work.nodes,
        idle=operations_engine.AS_RENDERED,
        before=work.before,
        notes=work.notes,
    )
    operations_engine.start(name="Start the engine", run=rig.run, nodes=work.nodes)

    # Verify: a real answer at the former speed blesses the change; else it goes back by itself.
    if host.name == work.node:
        operations_engine.prove(
            name="A real chat completion, at the former speed",
            run=rig.run,
            needed=work.version is not None,
            check=lambda: upgrade.verify(rig, work),
        )
