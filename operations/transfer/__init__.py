"""Images and weights from node to node."""
