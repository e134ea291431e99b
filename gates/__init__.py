"""Whether: pure functions from plan and snapshots to violations; they never see a host.

    core/                    violation, codes, waivers, and how a gate reads a snapshot
    firmware/ kernel/ gpu/   the layers of a machine, lowest first
    host/ engine/ transfer/
    unit/ weights/ artifact/
    recipe/ drift/ cluster/
    doctor/                  all of them, ranked by likely cause

`gate_sets` says which gates a runbook asks. All import core; only doctor and gate_sets import all.
"""
