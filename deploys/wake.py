"""wake: send a magic packet to what is down, and wait for its sshd; say what to look at if not.

Runbook: docs/runbooks/wake.md. Data: only=NODE, via=NODE (a neighbour sends), mac=ADDRESS,
budget=SECONDS, power_cycle=true with power_cycle_command and off_s=SECONDS.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import load, once, operator_data
from deploys.procedures.host.wake import asked, causes, told, woken
from operations.host import wake
from schema.inputs.runbook_data import WakeData

# Load: which machines, and what was kept of them while they were up.
plan = load()
data = operator_data(WakeData)

# Gate: who answers already, whether a card's address is known, and who may cut the power.
work = once("wake", lambda: asked(state, plan, data))
once("told", lambda: told(work))

# Act, verify: the packet again and again until sshd answers, or the causes in order.
wake.wake(
    name="Wake, and wait for sshd",
    asleep=work.asleep(host.name),
    work=lambda target: woken(state, work, target),
    causes=lambda target: causes(work, target.name),
)
