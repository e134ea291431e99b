"""A rig that others serve, taken over: room for our engine, and the answer of theirs again."""
