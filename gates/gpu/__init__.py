"""Driver and memory."""
