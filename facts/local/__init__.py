"""What the operator's own machine answers: git's patches."""
