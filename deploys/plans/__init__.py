"""What each runbook decides, a module with its name; `rig` and `engine` are what they share."""
