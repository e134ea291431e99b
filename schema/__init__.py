"""Types: what a rig is to be, and what a host says it is. Frozen, nothing unknown allowed.

core                                  base types, errors in one line, quoting, YAML    (bottom)
snapshot host hardware artifact       what a host reports
recipe vllm compatibility             recipes, their command line, the tables of the catalog
plan cluster                          a rig, and the plan of a run on it
adoption importing                    a recipe made of a running engine, or of a neighbour's
render_engine render_unit render_host the files that land on a node
measure                               a measurement and its statistics
keys load                             inventory, group data and --data; the one loader    (top)
"""
