"""What acts by itself on a rig that serves with the real vLLM: the watch, the memory guard."""
