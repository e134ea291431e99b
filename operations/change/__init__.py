"""One journalled change over all nodes of a rig, and the calls of node behind it."""
