"""An installation in a venv: backup, upgrade, patches, and what is known of it."""
