"""kernel: pin the kernel that GRUB boots, or try another one for a single boot.

Runbook: docs/runbooks/kernel.md. Data: kernel=RELEASE or kernel=current to pin;
candidate=RELEASE to boot it once, prove it and pin it, with budget=SECONDS for that; only=NODE.
"""

from pyinfra import host, state

from deploys.plans import kernel
from deploys.plans.rig import ALL, loaded
from operations import engine
from operations.apply import apply
from operations.host import reboot

# Load: what we want.
rig = loaded("kernel", revert=kernel.revert, runtimes=ALL)
want = kernel.parse_request(rig)

# Gate: the kernel is there, GRUB has it, and its driver is there.
rig.gate(kernel.gates(want), want.plan, lambda: kernel.inspect(state, want))
work = kernel.plan(rig, want)

# Act: files, holds and GRUB's default as one journalled change.
apply(
    name="Write GRUB's default and apt's holds",
    run=rig.run,
    label="kernel",
    steps=work.steps[host.name],
    members=work.members,
    idle=work.idle(host.name),
    before=work.before[host.name],
    words=work.words[host.name],
)
# A candidate's one boot: the engine down as a pair, the nodes at the same time.
if want.candidate:
    engine.stop(name="Stop the head", run=rig.run, nodes=rig.up.head)
    engine.stop(name="Stop the workers", run=rig.run, nodes=rig.up.workers)
    reboot(
        name=f"Boot {want.kernel} once",
        run=rig.run,
        nodes=work.members,
        before=work.boots[host.name],
        budget_s=want.budget_s,
    )
    engine.start(
        name="Start the engine on nodes that stayed up",
        run=rig.run,
        nodes=rig.up.all - work.members,
    )

# Verify: GRUB's own files say what boots next; a candidate has booted, with driver and engine.
if rig.at_head:
    engine.prove(
        name="The next boot is the one that was asked for",
        run=rig.run,
        needed=bool(work.members),
        check=lambda: kernel.verify_kernel_trial(rig, want, work),
    )
