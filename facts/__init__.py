"""What is: pyinfra facts, read-only, typed by schema; no decisions.

    rignode/    the program on a host: what is sent, and how it is called
    endpoint/   the engine's HTTP endpoint, asked from the operator's machine
    local/      git on the operator's machine

The modules here ask one thing each of a host.
"""
