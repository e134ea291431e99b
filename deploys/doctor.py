"""doctor: what is wrong with the rig, lowest layer first; read-only.

Runbook: docs/runbooks/doctor.md. Exit status 1 when something blocks serving.
Data: deep=true hashes the weights, json=true prints the findings for a machine.
"""

from pyinfra import state

from deploys.common.load_and_gate import load, once
from deploys.procedures.cluster.doctor import diagnose_cluster, report_cluster
from deploys.procedures.cluster.load_and_gate import load_cluster, on_cluster
from deploys.procedures.engine.doctor import diagnose, print_report

# Load: what should be.
plan = load_cluster() if on_cluster() else load()

# Verify: everything is read, nothing is changed; the first line is the likeliest cause.
if on_cluster():
    findings = once("diagnosis", lambda: diagnose_cluster(state, plan))
    once("report", lambda: report_cluster(plan, findings))
else:
    diagnosis = once("diagnosis", lambda: diagnose(state, plan))
    once("report", lambda: print_report(plan, diagnosis))
