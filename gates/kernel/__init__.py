"""The next boot, and a kernel pin."""
