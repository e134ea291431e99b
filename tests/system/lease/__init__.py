"""72 changes under a lease, each with a loss in its middle: what the nodes make of it."""
