"""The ways back: undo of a change, and restore of a backup."""
