"""A twin of a rig on this machine: its hosts by their names, its users and paths, a small engine.

data.py      an inventory's hosts with their merged data, as pyinfra merges them
shape.py     from that data to the twin: names, users, addresses, GPUs, what differs
recipe.py    the rig's recipe for the lab's small engine, under the same names
raising.py   makes the twin and what lies on its hosts
incident.py  deals an incident, judges and times it
incidents/   the incidents, each with how it breaks the twin
"""
