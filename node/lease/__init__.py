"""The dead-man's switch: a host goes back by itself when nobody renews an open change."""
