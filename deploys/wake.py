"""wake: send a magic packet to what is down, and wait for its sshd; say what to look at if not.

Runbook: docs/runbooks/wake.md. Data: only=NODE, via=NODE (a neighbour sends), mac=ADDRESS,
budget=SECONDS, power_cycle=true with power_cycle_command and off_s=SECONDS.
"""

from pyinfra import host, state

from deploys.plans import wake
from deploys.plans.rig import loaded
from operations import host as operations_host

# Load: which machines, and what was kept of them while they were up.
rig = loaded("wake")

# Gate: who answers already, whether a card's address is known, and who may cut the power.
work = wake.plan(rig)

# Act, verify: the packet again and again until sshd answers, or the causes in order.
operations_host.wake(
    name="Wake, and wait for sshd",
    asleep=work.asleep(host.name),
    work=lambda target: wake.wake_and_wait(state, work, target),
    causes=lambda target: wake.likely_causes(work, target.name),
)
