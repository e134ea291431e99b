"""The runbooks: one procedure a file, run by pyinfra, in four paragraphs: load, gate, act, verify.

    deploys/NAME.py     what a person runs; it reads as its page docs/runbooks/NAME.md
    procedures/         what a runbook decides: its plan, its verification, its way back
    common/             what every runbook shares: load, gate, run

Imports run procedures -> common, and from here to operations, gates, facts and schema.
"""
