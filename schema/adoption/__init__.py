"""From a live engine to rigbook's files: inventory, group data, recipe; and how the two compare."""
