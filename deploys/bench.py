"""bench: measure the engine that serves, the same way each time, and keep what came.

Runbook: docs/runbooks/bench.md. Data: streams, tokens, rounds, contexts, quick; compare=A,B tells
two kept benches apart and measures nothing; profiles=A,B serves and measures each of them, and goes
back to what serves now.
"""

from pyinfra import logger

from deploys.plans import bench, measure, serve
from deploys.plans.bench import benched
from deploys.plans.rig import loaded
from gates.gate_sets import CHANGING, MEASURING
from operations import engine
from schema.keys import BenchData

# Load: what is to be measured.
rig = loaded("bench", revert=serve.revert)
data = rig.data(BenchData)

# Gate: whether it is this rig that answers, and with profiles whether it may be changed now.
if data.profiles:
    wanted = bench.plans(rig)
    rig.gate(CHANGING)
elif not data.compare:
    rig.gate(MEASURING)

# Act, with profiles: each is served and measured; then what serves now is back, whatever happened.
if data.profiles and rig.at_head:
    engine.for_a_while(
        name="Serve and measure each profile",
        run=rig.run,
        words=f"serve and measure {', '.join(wanted)}",
        work=lambda: bench.measure_each(rig, wanted, data),
    )

# Verify: the figures are the evidence.
if rig.at_head and data.compare:
    a, b = (measure.last_bench(rig.plan.rig.name, name) for name in data.compare)
    for line in measure.words_compared(a, b):
        logger.info(f"    {line}")
if rig.at_head and not data.compare and not data.profiles:
    for line in benched(rig):
        logger.info(f"    {line}")
