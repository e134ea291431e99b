"""What runs a vLLM on this host by other means than rigbook, and what would start it again."""
