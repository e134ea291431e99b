"""A venv and its versions: inspect, plan, install, check, switch, prune."""
