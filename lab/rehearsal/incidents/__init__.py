"""The incidents of docs/incidents.md on a twin: how each breaks it, and what is judged.

breaks.py    the hands that break a rig; the engine's tests use them as well
table.py     the incidents that a twin can hold
not_held.py  the others, each with its reason
"""
