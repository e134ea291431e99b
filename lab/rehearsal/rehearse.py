"""`make rehearse`: a twin of a rig, and what it cannot show."""

from __future__ import annotations

from lab.core import console
from lab.core.settings import LabSettings
from lab.rehearsal import data, raising, shape


def make(settings: LabSettings, inventory: str) -> None:
    """Makes the twin of the rig in an inventory file; says how it differs and what is next."""
    made = shape.shape(settings, inventory, data.load(inventory))
    console.say(f"a twin of {inventory}: {', '.join(made.twin.names)}")
    for line in shape.told(made):
        console.say(line)
    raising.up(settings, made)
    console.say(f"next: pyinfra {made.twin.inventory} deploys/serve.py -y")
