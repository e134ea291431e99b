"""What is: pyinfra facts, read-only, typed by schema; no decisions.

node       the one way to ask a host; the snapshot          looks    what single runbooks ask
pack       the program made portable                        plain    asked without the program
endpoint   the engine's HTTP endpoint, asked from the operator's machine; measure: its speed
local      git and secrets on the operator's machine
"""
