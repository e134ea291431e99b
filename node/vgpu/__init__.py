"""HAMi's libvgpu: what is mounted, what a candidate is, the guard that puts ours back."""
