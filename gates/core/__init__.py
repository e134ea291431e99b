"""Violations, their codes, waivers, and how a gate reads a section of a snapshot."""
