"""The machine below the engine: kernel, reboot, firmware, wake-up, and units."""
