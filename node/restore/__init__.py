"""A backup of a tree back in its place: whether it fits here, unpacked beside, traded in."""
