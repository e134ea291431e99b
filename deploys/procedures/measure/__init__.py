"""bench and soak: what is asked, what is seen meanwhile, what is kept, and what it says."""
