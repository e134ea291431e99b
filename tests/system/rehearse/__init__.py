"""A twin of a rig, and incidents on it."""
