"""libvgpu: swap the library that the GPU's sharing preloads, atomically, proven and watched.

Runbook: docs/runbooks/libvgpu.md. Data: library=FILE + sha256=HEX, target, without, guard,
reapply, webhook_file or webhook, restart_pods, waive + reason; remove=true: the original back.
"""

from pyinfra import host, state

from deploys.procedures.cluster.libvgpu import decide, findings
from deploys.procedures.cluster.libvgpu_proof import proof
from deploys.procedures.cluster.load_and_gate import gate_cluster, load_cluster
from gates.gate_sets import CHANGING
from operations.change.apply import apply
from operations.engine import engine

# Load: what we want.
plan = load_cluster()

# Gate: whether. The candidate is loaded by a fresh process of the host, from memory.
snapshot, waivers = gate_cluster(plan, CHANGING, lambda: findings(plan))
work = decide(state, plan, snapshot, waivers)

# Act: temp in the same folder, loaded from there, renamed; the original is kept by its content.
apply(
    name="Swap the library",
    run=work.run,
    label="library",
    steps=work.steps,
    members=[host.name],
    idle="the library is as it should be",
    words=work.lines,
    notes=work.notes,
)

# Verify: on the disk, and inside a process that was started after it.
engine.prove(
    name="A fresh process maps it",
    run=work.run,
    needed=bool(work.steps or work.restarts),
    check=lambda: proof(state, plan, work),
)
