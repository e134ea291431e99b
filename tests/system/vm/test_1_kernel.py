"""The dreaded evening (B4): apt stages a kernel without a driver; nobody reboots into it.

A second card that can wake by a magic packet is armed before, and must be so after the reboot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.vm import MODULE
from tests.system.vm.conftest import PIN, Rig


def sleeper(rig: Rig) -> str:
    """The name that the card which can wake has in this boot."""
    return rig.machine.must("cd /sys/class/net; grep -l 52:54:00:88:01:01 */address").split("/")[0]


def test_the_evening(boot: Callable[..., Rig]) -> None:
    rig = boot(cards=("vmxnet3",))
    good, staged = rig.kernels.first, rig.kernels.second
    rig.with_engine()
    card = sleeper(rig)
    assert "Wake-on: d" in rig.machine.must(f"ethtool {card}")
    status, output = rig.deploy("deploys/firmware.py", "-y", "--data", f"nic={card}")
    assert status == 0 and f"{card} wakes by a magic packet" in output
    foreign = rig.machine.must("sha256sum /etc/default/grub")

    rig.second_kernel()
    assert rig.boots() == (staged, staged)

    _, output = rig.deploy("deploys/doctor.py", "-y")
    assert "warn boot-no-driver" in output and f"would boot {staged} next" in output
    status, output = rig.deploy("deploys/reboot.py", "-y")
    assert status == 1 and "boot-no-driver" in output and "kernel=current" in output
    assert rig.machine.kernel() == good

    status, output = rig.deploy("deploys/kernel.py", "--dry", "--diff", "--data", "kernel=current")
    assert status == 0 and "+GRUB_DEFAULT=saved" in output
    assert f"-> {good} (saved)" in output and f"linux-image-{good}" in output
    assert rig.boots() == (staged, staged)
    status, output = rig.deploy(*PIN)
    assert status == 0, output
    assert rig.boots() == (good, good)
    assert rig.machine.must("sha256sum /etc/default/grub") == foreign
    held = rig.machine.must("apt-mark showhold").split()
    assert held == [f"linux-image-{good}", "linux-image-cloud-amd64"]
    status, output = rig.deploy(*PIN)
    assert status == 0 and "as wanted" in output and "COMMITTED" not in output

    status, output = rig.deploy("deploys/reboot.py", "-y", "--data", "budget=1800")
    assert status == 0 and "another boot_id" in output, output
    assert rig.machine.kernel() == good
    # two cards without a naming policy may trade names at a boot; the .link file matches by address
    assert "Wake-on: g" in rig.machine.must(f"ethtool {sleeper(rig)}")
    rig.note(f"after the reboot: {card} is armed, Wake-on: g")
    rig.note(f"after the reboot: {good}, {rig.machine.must('lsmod | grep gpustand').split()[0]}")

    # the pinned kernel is taken away behind our back
    rig.machine.must(
        f"ln -sf /bin/true /usr/bin/linux-check-removal; export DEBIAN_FRONTEND=noninteractive; "
        f"apt-get remove -y -q --allow-change-held-packages linux-image-{good}",
        1800,
    )
    status, output = rig.deploy("deploys/reboot.py", "-y")
    assert status == 1 and "pin-gone" in output and "boot-no-driver" in output
    assert f"would boot {staged} next" in output


# A candidate boots once: blessed it becomes the pin; unblessed it falls back by itself.

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
