"""A venv: backup, patches, upgrade."""
