"""provenance: what the engine on the hosts was made of, before anyone rebuilds it; read-only.

Runbook: docs/runbooks/provenance.md. Data: commits=a,b,#123, git=/path/of/a/clone on this machine,
venv=PATH where the recipe names none, json=true. Exit status 1 where the artefact is not fit.
"""

from pyinfra import state

from deploys.common.load_and_gate import load, once
from deploys.procedures.venv.provenance import tell

# Load: which artefact the recipe runs.
plan = load()

# Verify: its files are read where they lie; no container is started, nothing is imported.
once("provenance", lambda: tell(state, plan))
