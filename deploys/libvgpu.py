"""libvgpu: swap the library that the GPU's sharing preloads, atomically, proven and watched.

Runbook: docs/runbooks/libvgpu.md. Data: library=FILE + sha256=HEX, target, without, guard,
reapply, webhook_file or webhook, restart_pods, waive + reason; remove=true: the original back.
"""

from deploys.plans import libvgpu
from deploys.plans.rig import DEPLOYMENT, gated
from gates.gate_sets import CHANGING
from operations import engine
from operations.apply import apply

# Load, Gate: the candidate is loaded by a fresh process of the host, from memory.
rig = gated("libvgpu", CHANGING, revert=libvgpu.revert, more=libvgpu.findings, runtimes=DEPLOYMENT)
work = libvgpu.plan(rig)

# Act: temp in the same folder, loaded from there, renamed; the original is kept by its content.
apply(
    name="Swap the library",
    run=rig.run,
    label="library",
    steps=work.steps,
    members=rig.nodes.head,
    idle="the library is as it should be",
    words=work.lines,
    notes=work.notes,
)

# Verify: on the disk, and inside a process that was started after it.
engine.prove(
    name="A fresh process maps it",
    run=rig.run,
    needed=bool(work.steps or work.restarts),
    check=lambda: libvgpu.verify_libvgpu_proof(rig, work),
)
