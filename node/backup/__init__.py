"""Backups of an installation: walk, pack, verify, restore, prune."""
