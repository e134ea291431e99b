"""doctor: what is wrong with the rig, lowest layer first; read-only.

Runbook: docs/runbooks/doctor.md. Exit status 1 when something blocks serving.
Data: deep=true hashes the weights, json=true prints the findings for a machine, bundle=FILE writes
an archive for a report.
"""

from deploys.plans import doctor
from deploys.plans.rig import ALL, loaded, once

# Load: what should be.
rig = loaded("doctor", runtimes=ALL)

# Verify: everything is read, nothing is changed; the first line is the likeliest cause.
diagnosis = once("diagnosis", lambda: doctor.diagnose(rig))
once("report", lambda: doctor.report(rig, diagnosis))
