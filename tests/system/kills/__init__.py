"""60 operators killed at random moments, each followed by ONE more run of the same command."""
