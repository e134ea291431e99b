"""An emulated machine: root tree, disk with GRUB, QEMU."""
