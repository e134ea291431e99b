"""kernel: pin the kernel that GRUB boots, or try another one for a single boot.

Runbook: docs/runbooks/kernel.md. Data: kernel=RELEASE or kernel=current to pin;
candidate=RELEASE to boot it once, prove it and pin it, with budget=SECONDS for that; only=NODE.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.host.kernel import decide, gates_of, observed, wanted
from deploys.procedures.host.kernel_trial import back_to_pinned, candidate_proof, reboot_into
from operations.change.apply import apply
from operations.engine import engine
from schema.inputs.runbook_data import KernelData

# Load: what we want.
rig = load()
data = operator_data(KernelData)
want = once("want", lambda: wanted(rig, data))
plan = want.plan

# Gate: the kernel is there, GRUB has it, and its driver is there.
snapshots, waivers = gate(plan, gates_of(want), lambda: observed(state, want))
work = decide(state, want, snapshots, waivers, back_to_pinned)

# Act: files, holds and GRUB's default as one journalled change; a candidate's one boot.
apply(
    name="Write GRUB's default and apt's holds",
    run=work.run,
    label="kernel",
    steps=work.steps[host.name],
    members=work.members,
    idle=work.idle(host.name),
    before=work.before[host.name],
    words=work.words[host.name],
)
reboot_into(want, work)

# Verify: GRUB's own files say what boots next; a candidate has booted, with driver and engine.
if host.name == plan.rig.head.name:
    engine.prove(
        name="The next boot is the one that was asked for",
        run=work.run,
        needed=bool(work.members),
        check=lambda: candidate_proof(state, want, work),
    )
