"""The machine: kernel, reboot, drop-ins, Wake-on-LAN."""
