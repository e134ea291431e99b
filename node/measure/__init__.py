"""Measuring an engine: load by vLLM's own client, a sample of the node, results that are kept."""
