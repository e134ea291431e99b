"""Power cuts while a kernel is pinned, and while that is undone: it boots the old kernel or the
pinned one, by files that are whole."""

from __future__ import annotations

import shutil

import pytest

from node.change import apply as change_apply
from tests.unit.node.crash.cases import Lied, Lost, Run, journal, undone
from tests.unit.node.crash.test_power_cuts import holds
from tests.unit.node.kernel.test_grub_step import NEW, OLD, Grub, lead, pin
from tests.unit.node.support.host import Host
from tests.unit.node.support.table_lines import Show

# its flush is a sync alone: the real one also freezes the file system of /boot
SCRIPT = """\
import os, sys
from pathlib import Path
from node.change import apply, undo
from node.kernel import boot_flush
from tests.unit.node.kernel.test_grub_step import Grub, lead, pin
lead(Grub(Path({root!r})), setattr)
boot_flush.flush = lambda folder: os.sync()
{verb}
"""
VERBS = {"pin": "apply.apply(pin())", "undo": "undo.undo({})"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_pin(host: Host, show: Show, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    grub = Grub(host.root)
    lead(grub, monkeypatch.setattr)

    def reset() -> None:
        for folder in (host.state, grub.folder):
            shutil.rmtree(folder, ignore_errors=True)
        grub.make()
        if verb == "undo":
            change_apply.apply(pin())

    reset()
    before = grub.state() if verb == "pin" else None

    def check(answered: bool) -> str:
        journal()
        boots = grub.boots()
        if boots not in ((NEW, NEW), (OLD, OLD)):
            raise Lost(f"it boots {boots}")
        wanted = (OLD, OLD) if verb == "pin" else (NEW, NEW)
        if answered and boots != wanted:
            raise Lied(f"it answered, but it boots {boots}")
        end = undone((NEW, NEW), grub.boots)
        if before is not None and grub.state() != before:
            raise Lied(f"undone, but the folder holds {sorted(grub.state())}")
        return end

    script = SCRIPT.format(root=str(host.root), verb=VERBS[verb])
    holds(Run(host, verb, {}, reset, check, script=script), show, f"{verb} of a kernel")
