"""Units: files, drop-ins, Exec lines, states, and the hold of a stopped engine."""
