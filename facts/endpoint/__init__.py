"""The engine's endpoint: a completion, a short probe, the speed of an answer."""
