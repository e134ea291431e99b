"""Patches of installed files: which are in force, and the tool that applies them."""
