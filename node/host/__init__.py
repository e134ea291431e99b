"""A host that keeps itself alive: its settings, its boots and what memory killed."""
