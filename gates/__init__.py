"""Pure functions from (plan, snapshots) to findings; nothing here imports pyinfra."""
