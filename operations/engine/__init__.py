"""The engine: configured, stopped, started, proven by an answer, cleaned up after."""
