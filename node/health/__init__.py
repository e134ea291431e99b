"""What the machine itself says of its GPUs, links, disks and kernel; read-only, decides nothing."""
