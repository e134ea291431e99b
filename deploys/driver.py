"""driver: another version of the GPU's driver, with a kernel where it must, or back by itself.

Each node that changes boots once: the new module comes with that boot.

Runbook: docs/runbooks/driver.md. Data: version=580.142, or latest=true, with family=590 for
another branch; candidate=RELEASE boots that kernel with it once, proves and pins it; budget.
"""

from pyinfra import host, state

from deploys.plans import driver, serve
from deploys.plans.measure import last_rates
from deploys.plans.rig import endpoint, engine_may_run, loaded
from gates.recipe import running_profile
from operations import engine, venv
from operations import host as operations_host
from operations.apply import apply
from operations.host import reboot

# Load: what the rig is, and which driver is wanted.
rig = loaded("driver", revert=driver.revert)
want = driver.parse_request(rig)
serve.must_answer(rig.plan)

# Gate: it is to be had, apt touches nothing else, the old one is kept, nobody else has the GPU.
rig.gate(driver.gates(want), want.plan, lambda: driver.inspect(state, want))
work = driver.plan(rig, want)

# Act: fetch while the engine serves; then one node after the other.
operations_host.fetch_driver(
    name="Fetch the new packages, keep the old ones",
    run=rig.run,
    rows=work.rows,
    words=work.words.get(host.name, ()),
)
if rig.at_head:
    venv.measure(
        name="Measure what the engine does now",
        run=rig.run,
        needed=bool(work.members),
        endpoint=endpoint(rig.plan),
        is_up=engine_may_run(rig.snapshots[host.name]),
        recorded=last_rates(
            rig.plan, running_profile(rig.plan, rig.plan.rig.head, rig.snapshots[host.name])
        ),
    )
up = rig.up if work.members else rig.up.among(())
engine.stop(name="Stop the head", run=rig.run, nodes=up.head)
engine.stop(name="Stop the workers", run=rig.run, nodes=up.workers)
for node in work.members:
    stages = (
        ("Exchange the packages of", "install", work.install),
        ("Have the kernel tried once on", "once", work.once),
    )
    for words, label, steps in stages:
        apply(
            name=f"{words} {node}",
            run=rig.run,
            label=f"{label} {node}",
            steps=steps[node] if host.name == node else [],
            members=work.of(node),
            idle="nothing to do here in this step",
            before=work.before[host.name],
        )
    reboot(
        name=f"Boot {node} once",
        run=rig.run,
        nodes=work.of(node),
        before=work.boots[node],
        budget_s=want.budget_s,
    )
operations_host.write_cdi(name="Make the CDI specs anew", run=rig.run, specs=work.specs)
operations_host.driver_works(
    name="Module, library and nvidia-smi agree",
    run=rig.run,
    members=work.members,
    check=lambda name: driver.works(rig, want, work, name),
)
engine.start(name="Start the workers", run=rig.run, nodes=up.workers)
engine.start(name="Start the head", run=rig.run, nodes=up.head)

# Verify: a real answer at the former speed blesses driver and kernel; else all goes back.
if rig.at_head:
    engine.prove(
        name="Driver, kernel and engine are proven",
        run=rig.run,
        needed=bool(work.members),
        check=lambda: driver.verify_driver_trial(rig, want, work),
    )
