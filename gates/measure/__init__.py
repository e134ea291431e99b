"""Whether a measurement's figures are the engine's own, and what a drift of memory means."""
