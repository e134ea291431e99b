"""Undo of a change, and restore of a backup."""
