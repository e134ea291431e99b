"""patch: bring the recipe's patches of an engine's files into force, exactly once.

Runbook: docs/runbooks/patch.md. Data: venv=PATH where the recipe names none, waive + reason.
"""

from pyinfra import host, state

from deploys.plans import patch, serve
from deploys.plans.rig import gated
from gates.gate_sets import CHANGING
from operations import engine, venv
from operations.apply import apply

# Load, Gate: a file that is in no known state stops all hosts before a change.
rig = gated("patch", CHANGING, revert=serve.revert)
work = patch.plan(rig)

# Act: files as whole contents, then the tools of others; all of it journalled.
apply(
    name="Write the patched files",
    run=rig.run,
    label="patches",
    steps=work.steps[host.name],
    members=work.to_write,
    idle="every patch is applied, or not needed",
    before=work.before[host.name],
    notes=work.why,
)
for tool, seconds in patch.tools_for(rig.plan, host.name, work.venvs[host.name]):
    venv.use_tool(
        name=f"Run the patch tool {tool['id']}",
        run=rig.run,
        tool=tool,
        members=work.tools[tool["id"]],
        timeout_s=seconds,
    )

# Verify: another look says that every patch is in force; that blesses the change.
if rig.at_head:
    nodes = ", ".join(work.venvs)
    engine.prove(
        name="The patches are in force",
        run=rig.run,
        needed=work.is_needed,
        check=lambda: patch.verify(
            state, rig.plan, work.venvs, f"on {nodes}; the engine reads them at its next start"
        ),
    )
