"""What a run wants: the plan of a rig, and each node's engine in it."""
