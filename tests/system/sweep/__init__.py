"""Deploys that are interrupted at random moments, each followed by ONE more run of the same."""
