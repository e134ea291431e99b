"""The program on a host: standard library only, Python 3.10 to 3.13 (docs/reference/node.md).

    cli/                       command line, verb table, console, progress            (top)
    growth/                    what is kept, and the rule by which it goes
    backup/ restore/ venv/     verbs that open a change, by capability
    patch/
    image/ weights/ engine/
    reap/ kube/ vgpu/ watch/
    kernel/ machine/ host/     step kinds and what they look at
    systemd/ docker/ transfer/ snapshot/ health/
    change/                    journal, transaction, undo, the registry of step kinds
    files/                     atomic files, locks, the state folder
    core/ rules/               errors, processes, validation; rules that others apply too  (bottom)

It imports nothing else of the project. The registry and the verb table name modules in strings.
"""
