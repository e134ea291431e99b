"""What the machine says of its own GPUs, links, disks and kernel, judged."""
