"""What every runbook shares: loading a rig, its gates, the journalled run, and pyinfra's start."""
