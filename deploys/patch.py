"""patch: bring the recipe's patches of an engine's files into force, exactly once.

Runbook: docs/runbooks/patch.md. Data: venv=PATH where the recipe names none, waive + reason.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load
from deploys.procedures.engine.serve import revert
from deploys.procedures.venv.patch import decide, in_force, tools_here
from gates.gate_sets import CHANGING
from operations.change.apply import apply
from operations.change.run import Run
from operations.engine import engine
from operations.venv import patches

# Load: what we want.
plan = load()

# Gate: whether. A file that is in no known state stops all hosts before a change.
_, waivers = gate(plan, CHANGING)
work = decide(state, plan, waivers)
run = work.run(lambda: Run(state, "patch", plan, work.waivers, revert))

# Act: files as whole contents, then the tools of others; all of it journalled.
apply(
    name="Write the patched files",
    run=run,
    label="patches",
    steps=work.steps[host.name],
    members=work.to_write,
    idle="every patch is applied, or not needed",
    before=work.before[host.name],
    notes=work.why,
)
for tool, seconds in tools_here(plan, work, host.name):
    patches.use_tool(
        name=f"Run the patch tool {tool['id']}",
        run=run,
        tool=tool,
        members=work.tools[tool["id"]],
        timeout_s=seconds,
    )

# Verify: another look says that every patch is in force; that blesses the change.
if host.name == plan.rig.head.name:
    engine.prove(
        name="The patches are in force",
        run=run,
        needed=work.is_needed,
        check=lambda: in_force(state, plan, work),
    )
