"""bench: measure the engine that serves, the same way each time, and keep what came.

Runbook: docs/runbooks/bench.md. Data: streams, tokens, rounds, contexts, quick; compare=A,B tells
two kept benches apart and measures nothing.
"""

from pyinfra import logger

from deploys.common.procedure import loaded
from deploys.procedures.measure import history, words
from deploys.procedures.measure.bench import benched
from schema.inputs.measure_data import BenchData

# Load: what is to be measured.
rig = loaded("bench")
data = rig.data(BenchData)

# Verify: nothing is changed; the figures are the evidence.
if rig.at_head and data.compare:
    a, b = (history.bench(rig.plan.rig.name, name) for name in data.compare)
    for line in words.compared(a, b):
        logger.info(f"    {line}")
if rig.at_head and not data.compare:
    for line in benched(rig):
        logger.info(f"    {line}")
