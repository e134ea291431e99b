"""Back to what was: undo on every node, and the former engine answering."""
