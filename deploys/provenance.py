"""provenance: what the engine on the hosts was made of, before anyone rebuilds it; read-only.

Runbook: docs/runbooks/provenance.md. Data: commits=a,b,#123, venv=PATH where the recipe names none,
json=true. Exit status 1 where the artefact is not fit.
"""

from deploys.plans import provenance
from deploys.plans.rig import loaded

# Load: which artefact the recipe runs.
rig = loaded("provenance")

# Verify: its files are read where they lie; no container is started, nothing is imported.
provenance.report(rig)
