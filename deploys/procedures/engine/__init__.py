"""Serve, stop, restart, verify, watch and doctor: the engine as a rig's one service."""
