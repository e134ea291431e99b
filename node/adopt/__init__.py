"""Taking an engine over from who runs it by other means, with the way back (docs/adr/0025).

Each kind ends one thing that starts or keeps such an engine, and starts it again at an undo.
"""
