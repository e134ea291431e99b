"""Types: what a rig is to be, and what a host says it is. Frozen, nothing unknown allowed.

core/       base types, errors in one line, quoting, YAML                  (bottom)
recipe/     recipes, compatibility, patches, placeholders
observed/   what a host reports: the snapshot and the other documents
machine/    records about a board: attestations, checklists, wake-up
inputs/     inventory, group data and --data; the one loader
desired/    the plan of a run
render/     the files that land on a node
"""
