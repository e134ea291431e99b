"""Types: what a rig is to be, and what a host says it is. Frozen, nothing unknown allowed.

core/       base types, errors in one line, quoting, YAML; types of single values     (bottom)
observed/   what a host reports: the snapshot, its sections and the other documents
recipe/     recipes, compatibility, patches, placeholders
desired/    a rig, and the plan of a run on it
importing/  recipes of eugr's spark-vllm-docker and of sparkrun, made into ours
machine/    records about a board: attestations, checklists, wake-up; a rig as it was seen
render/     the files that land on a node
inputs/     inventory, group data and --data, a type a runbook; the one loader        (top)
"""
