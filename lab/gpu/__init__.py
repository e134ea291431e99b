"""A rig host with a real NVIDIA GPU: its parcels, its boot, its engine (docs/reference/gpu.md)."""
