"""report: the state of the rig, and the history of its measurements, as pages; read-only.

Runbook: docs/runbooks/report.md. Exit status 1 when charts cannot be drawn.
"""

from pyinfra import logger

from deploys.plans.report import reported
from deploys.plans.rig import ALL, loaded

# Load: which rig.
rig = loaded("report", runtimes=ALL)

# Verify: nothing is changed; what is seen becomes the pages.
if rig.at_head:
    for line in reported(rig):
        logger.info(f"    {line}")
