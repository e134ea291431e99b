"""adopt: what a rig that serves by other means runs, and taking it over."""
