"""Whether: pure functions from plan and snapshots to violations; they never see a host.

A module for each layer of a machine, lowest first: firmware, kernel, driver, gpu, health, host,
storage, fabric, transfer, weights, artifact, known_bad, patches, provenance, unit, processes,
endpoint, recipe, cluster, measure. `core` has violation, codes and waivers; `gate_sets` says which
gates a runbook asks; `doctor` ranks all of them by likely cause.
"""
