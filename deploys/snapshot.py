"""snapshot: all that is seen of the rig, kept as one file on this machine for a twin; read-only.

Runbook: docs/runbooks/snapshot.md. Exit status 1 when no node answers.
"""

from deploys.common.load_and_gate import once
from deploys.common.procedure import loaded
from deploys.procedures.report import snapshot

# Load: which rig.
rig = loaded("snapshot")

# Verify: nothing is changed; what is seen becomes the file.
once("snapshot", lambda: snapshot.record(rig))
