"""The state of a rig and the history of its measurements, as pages that need no network."""
