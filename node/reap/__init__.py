"""Orphans of an engine: found, proven, ended by pid and start time; shared memory."""
