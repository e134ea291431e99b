"""An image from store to store: what is there, what came, what a tag names."""
