"""The runbooks: one procedure a file, run by pyinfra, in four paragraphs: load, gate, act, verify.

deploys/NAME.py     what a person runs; it reads as its page docs/runbooks/NAME.md
plans/NAME.py       what that runbook decides: its plan, its verification, its way back
plans/rig.py        what every runbook shares: load, gate, resume; engine.py: ask it, prove it
"""
