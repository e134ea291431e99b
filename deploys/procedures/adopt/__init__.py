"""adopt: what serves by other means, as rigbook's files, and how the two compare."""
