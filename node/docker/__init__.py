"""Docker: its API, containers, image stores, and the files inside them."""
