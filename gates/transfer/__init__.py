"""The way, the room and the fabric for an image or weights on the move."""
