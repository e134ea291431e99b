"""The program on a host: standard library only, Python 3.10 to 3.13 (docs/reference/node.md).

    __main__ verbs request console    a verb in, JSON out; what a person at the host types    (top)
    growth lease                      what is kept; back when the operator is gone
    backup/ venv/ transfer/ docker/   verbs that move or keep much
    engine/ kube/ kernel/ reap adopt  what acts on an engine, a Deployment, the next boot
    vgpu measure dropin former
    snapshot, and what it calls       gpus processes units health host machine host_files orphans
    change/                           journal, transaction, steps, undo
    core/ rules/                      errors, files, processes; rules for others, too     (bottom)

It imports nothing else of the project. `verbs` and `change/kinds` name modules in strings.
"""
