"""host: a machine that hangs comes back by itself, with its last words; memory that runs out ends
the engine, not the host.

Runbook: docs/runbooks/host.md. Data: watchdog=SECONDS, panic=SECONDS, panic_on=softlockup,…,
journal_mib, memory_guard=true|false, memory_guard_mib, only=NODE, remove=true to take it away.
"""

from pyinfra import host

from deploys.plans import host as plans_host
from deploys.plans.rig import ALL, loaded
from gates.gate_sets import CHANGING
from operations import engine
from operations.apply import apply

# Load: what we want, and on which nodes.
rig = loaded("host", revert=plans_host.revert, runtimes=ALL)
want = plans_host.parse_request(rig)

# Gate: whether this rig may be changed now, and whether the memory guard can be armed.
rig.gate(CHANGING, want.plan)
work = plans_host.plan(rig, want)

# Act: files, the values of the kernel that runs, and who reads them, as one journalled change.
apply(
    name="Set what brings the host back",
    run=rig.run,
    label="host",
    steps=work.steps[host.name],
    members=work.members,
    idle="what can be set here is set",
    before=work.before[host.name],
)

# Verify: kernel, PID 1, journal and guard say it themselves.
if rig.at_head:
    engine.prove(
        name="The host is as it was set",
        run=rig.run,
        needed=bool(work.members),
        check=lambda: plans_host.verify(rig, work),
    )
