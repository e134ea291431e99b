"""The command line: verbs, console, what systemd calls, progress."""
