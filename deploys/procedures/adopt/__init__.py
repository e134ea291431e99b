"""adopt: what serves by other means: told, written as rigbook's files, compared, taken over."""
