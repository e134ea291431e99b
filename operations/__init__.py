"""Changes: pyinfra operations that read, then do nothing or act; they know no procedure.

    change/     the journalled run of a rig, and the operation that applies steps
    rollback/   undo of a change, and the engine back
    engine/     start, stop, wait for an answer
    venv/ transfer/ host/   by capability

All import change; nothing here imports gates.
"""
