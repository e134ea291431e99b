"""kernel on a VM with real GRUB, killed at random moments of a pin; the stand-in engine runs on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from tests.system.kills.cut import Cutter, numbers
from tests.system.rehearsal import Done
from tests.system.vm.conftest import PIN, Rig


def test_one_more_run_of_kernel(boot: Callable[..., Rig]) -> None:
    """Each pin is undone by its id before the next: a second one would change nothing."""
    if not numbers("kernel"):
        return
    rig = boot()
    rig.with_engine()
    pinned = rig.kernels.first
    cutter = Cutter("kernel")

    def run() -> Done:
        began = time.monotonic()
        status, text = rig.deploy(*PIN)
        return Done(status, text, time.monotonic() - began)

    def status() -> str:
        rows = rig.node("journal")["changes"]
        assert not [r["id"] for r in rows if r["status"] in ("OPEN", "INCONSISTENT")], rows
        return str(rows[0]["status"])

    def undo() -> None:
        change = rig.node("journal")["changes"][0]["id"]
        done, text = rig.deploy("deploys/rollback.py", "-y", "--data", f"change={change}")
        assert done == 0, text

    cutter.measured(run())
    undo()
    words = [sys.executable, "-m", "pyinfra", "tests/system/vm/inventory.py", *PIN]
    for _ in numbers("kernel"):
        cutter.again(words, run, status, env={**os.environ, **rig.environ()})
        assert rig.boots() == (pinned, pinned) and status() == "COMMITTED"
        undo()
