"""A change: its journal, its steps, the transaction, undo, and the registry of step kinds."""
