"""Reachable, readable, on time, with room on its disks."""
