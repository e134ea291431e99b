"""Copies of backups on another disk: made, verified there, and taken back."""
