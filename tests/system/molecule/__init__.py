"""That the scenario of molecule/ can fail: what it says of deploys that change, or not."""
