"""Booted nspawn hosts: their root tree, links, life cycle, and how they are reached."""
