"""Engine processes: state, peers, orphans, and what the log of a failed start says."""
