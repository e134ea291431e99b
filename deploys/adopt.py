"""adopt: what a rig that serves by other means runs, and taking it over.

Runbook: docs/runbooks/adopt.md. Data: take=true hands it over as one change.
"""

from deploys.common.load_and_gate import operator_data
from deploys.procedures.adopt import take
from schema.inputs.runbook_data import AdoptData

data = operator_data(AdoptData)

if data.take:
    take.over()
