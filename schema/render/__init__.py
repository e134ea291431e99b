"""The files that land on a node, rendered from a plan."""
