"""A candidate boots once: blessed it becomes the pin; unblessed it falls back by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from lab.vmroot import MODULE
from tests.vm.conftest import Rig

PIN = ("deploys/kernel.py", "-y", "--data", "kernel=current")
WAIVED = ("--data", "waive=pin-no-driver", "--data", "reason=the test wants it to fail")


def test_a_candidate_without_a_driver_falls_back_also_unattended(boot: Callable[..., Rig]) -> None:
    rig = boot()
    good, other = rig.kernels.first, rig.kernels.second
    rig.second_kernel()
    status, output = rig.deploy(*PIN)
    assert status == 0, output
    attempt = ("deploys/kernel.py", "-y", "--data", f"candidate={other}", "--data", "budget=900")
    status, output = rig.deploy(*attempt)
    assert status == 1 and "pin-no-driver" in output

    # the operator's machine dies while the candidate boots: nobody blesses it
    process = rig.start_deploy(*attempt[:-1], "budget=300", *WAIVED)
    before = rig.machine.boot_id()
    while rig.machine.boot_id() in (before, None):
        assert process.poll() is None, process.communicate()[0]
        if (rig.boots() if rig.machine.boot_id() == before else (None, None))[0] == other:
            break
        time.sleep(2)
    process.kill()
    rig.note("the operator's run is killed; next boot: " + str(rig.boots()[0]))
    rig.machine.sudo("nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &", 30)
    rig.machine.wait(other_than=before)
    assert rig.machine.kernel() == other
    candidate = rig.machine.boot_id()
    rig.note(f"{other} runs; nobody answers for it")
    rig.machine.wait(other_than=candidate)
    assert rig.machine.kernel() == good
    said = rig.machine.must("journalctl -b -1 -u rigbook-candidate.service --no-pager")
    assert "was not blessed within 300 s" in said
    rig.note(f"fell back to {good} by itself")
    assert rig.boots() == (good, good)
    undone = rig.machine.must("rignode undo --text 2>&1 || rignode undo")
    rig.note(undone.strip().splitlines()[0])
    assert rig.boots() == (good, good)
    assert "rigbook-candidate" not in rig.machine.must("ls /etc/systemd/system")

    # with its driver: boots once, and is pinned
    rig.machine.must(
        f"install -D -m 0644 -t /lib/modules/{other}/updates /srv/modules/{other}/{MODULE}.ko && "
        f"depmod {other}"
    )
    status, output = rig.deploy("deploys/kernel.py", "-y", "--data", f"candidate={other}",
                                "--data", "budget=1800")  # fmt: skip
    assert status == 0, output
    assert f"tower boots {other}" in output
    assert rig.machine.kernel() == other and rig.boots() == (other, other)
    assert "rigbook-candidate" not in rig.machine.must("ls /etc/systemd/system")
    rig.machine.reboot()
    assert rig.machine.kernel() == other
