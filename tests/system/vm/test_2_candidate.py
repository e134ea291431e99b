"""A candidate boots once: blessed it becomes the pin; unblessed it falls back by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.vm.root import MODULE
from tests.system.vm.conftest import PIN, Rig

WAIVED = ("--data", "waive=pin-no-driver", "--data", "reason=the test wants it to fail")


def test_a_candidate_falls_back_unattended_or_is_promoted(
    boot: Callable[..., Rig], staged: Path
) -> None:
    rig = boot(base=staged)
    good, other = rig.kernels.first, rig.kernels.second
    assert rig.boots() == (other, other)
    status, output = rig.deploy(*PIN)
    assert status == 0, output
    attempt = ("deploys/kernel.py", "-y", "--data", f"candidate={other}")
    status, output = rig.deploy(*attempt)
    assert status == 1 and "pin-no-driver" in output

    # the operator's machine dies while the candidate boots: nobody blesses it
    said = rig.tried_without_operator(*attempt, *WAIVED)
    assert f"{other} was not blessed within" in said
    assert rig.boots() == (good, good)
    for line in rig.machine.must("rignode undo").strip().splitlines():
        rig.note(f"rignode undo: {line[:160]}")
    assert rig.boots() == (good, good)
    assert "rigbook-candidate" not in rig.machine.must("ls /etc/systemd/system")

    # with its driver, and with an engine that comes up by itself: boots once, and is pinned
    rig.with_engine()
    rig.machine.must(
        f"install -D -m 0644 -t /lib/modules/{other}/updates /srv/modules/{other}/{MODULE}.ko && "
        f"depmod {other}"
    )
    status, output = rig.deploy(*attempt, "--data", "budget=1800")
    assert status == 0, output
    assert f"tower boots {other}" in output and "solo" in output
    assert rig.machine.kernel() == other and rig.boots() == (other, other)
    assert "rigbook-candidate" not in rig.machine.must("ls /etc/systemd/system")
    rig.note(f"booted again after {rig.machine.reboot():.0f} s: {rig.machine.kernel()}")
    assert rig.machine.kernel() == other
