"""bench and soak on booted hosts with the real vLLM."""
