"""Kernels, GRUB and apt: what is installed, what boots next, what is held."""
