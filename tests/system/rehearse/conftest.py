"""Twins in the tests' place. `RIGBOOK_LAB=twin` takes the twin that `make rehearse` left up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from lab import rehearsal as lab_rehearsal
from lab.core import TESTS, Place, load_settings
from lab.incidents import Rig
from tests.system.rehearsal import Lab, rehearsal

Twins = Callable[[str], AbstractContextManager[tuple[Lab, Rig]]]


def where() -> Place:
    """The lab of this run: the one that the environment names, where a twin is up in it."""
    lab = load_settings()
    return TESTS if lab.twin() is None else lab.place


def free() -> int:
    """The bytes of memory that this machine has available."""
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024


@pytest.fixture(scope="session")
def twin_of() -> Twins:
    """A twin of an inventory for the time of a block: booted, and after a serve."""

    @contextmanager
    def up(inventory: str) -> Iterator[tuple[Lab, Rig]]:
        before = free()
        with rehearsal(inventory, verb="rehearse", place=where()) as lab:
            rig = lab_rehearsal.rig_of(lab.settings)
            done = lab.pyinfra("serve", inventory=rig.inventory)
            assert done.rc == 0, done.text
            taken = (before - free()) / 2**30
            print(f"TABLE twin of {inventory}: {len(rig.names)} hosts serve, {taken:.1f} GiB")
            yield lab, rig

    return up
