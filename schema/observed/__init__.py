"""What a host reports, typed: the snapshot and the other documents of node."""
