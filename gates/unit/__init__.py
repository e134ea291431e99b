"""systemd units: ghosts, crash loops, supervisors, the launch script."""
