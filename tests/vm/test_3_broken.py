"""What breaks while a kernel is pinned: power, update-grub, /boot; what GRUB cannot take back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from lab import console
from node import pack
from tests.vm.conftest import Rig

PIN = ("deploys/kernel.py", "-y", "--data", "kernel=current")


def test_refusals_and_a_failing_update_grub_change_nothing(boot: Callable[..., Rig]) -> None:
    rig = boot()
    good = rig.kernels.first
    state = "cd /boot/grub; sha256sum grub.cfg grubenv; apt-mark showhold; ls /etc/default/grub.d"
    before = rig.machine.sudo(state).stdout

    def refused(*words: str, pin: str = "current") -> None:
        status, output = rig.deploy(*PIN[:-1], f"kernel={pin}")
        assert status == 1, output
        for word in words:
            assert word in output
        assert rig.boots() == (good, good)

    refused("pin-entry", "is not installed", good, pin="6.9.9-1-gone")
    rig.machine.must(
        "printf '#!/bin/sh\\nexit 7\\n' > /etc/grub.d/09_bad; chmod +x /etc/grub.d/09_bad"
    )
    refused("update-grub failed", "ROLLED_BACK")
    rig.machine.must("rm /etc/grub.d/09_bad")
    rig.machine.must("echo GRUB_DEFAULT=0 > /etc/default/grub.d/zzz.cfg")
    refused("GRUB_DEFAULT=0 in /etc/default/grub.d/zzz.cfg")
    rig.machine.must("rm /etc/default/grub.d/zzz.cfg; rmdir --ignore-fail-on-non-empty "
                     "/etc/default/grub.d")  # fmt: skip
    rig.machine.must("mv /boot/grub/grubenv /root/")
    refused("grubenv-bad", "missing")
    rig.machine.must("mv /root/grubenv /boot/grub/")
    rig.machine.must("fallocate -l $(($(stat -f -c '%a*%S' /) - 30000000)) /filled")
    refused("boot-room")
    rig.machine.must("rm /filled")
    assert rig.machine.sudo(state).stdout == before


# Seconds into the pin at which QEMU is killed; the emulated update-grub takes about ten.
CUTS_S = (2.0, 6.0, 12.0)


def test_the_power_fails_during_the_pin(boot: Callable[..., Rig]) -> None:
    rig = boot()
    good = rig.kernels.first
    rig.machine.must("mkdir -p /etc/default/grub.d; sync")
    file = {"op": "file", "path": "/etc/default/grub.d/zz-rigbook.cfg", "mode": "0644",
            "content": "GRUB_DEFAULT=saved\n"}  # fmt: skip
    grub = {"op": "grub", "saved": good, "regenerate": True}
    for number, delay_s in enumerate(CUTS_S):
        change = {"id": f"cut-{number}-x", "deploy": "kernel", "operator": "a@b"}
        request = json.dumps({"change": change, "steps": [file, grub]})
        rig.send(pack.zipapp_bytes(), "/root/rignode.pyz")
        rig.send(request.encode(), "/root/request")
        rig.machine.must("sync")
        rig.machine.sudo(
            "nohup python3 /root/rignode.pyz apply < /root/request >/root/said 2>&1 &"
            f" sleep {delay_s}"
        )
        rig.machine.power_cut()
        rig.note(f"power cut {delay_s} s into the pin")
        rig.machine.start()
        rig.note(f"boots by itself after {rig.machine.wait():.0f} s: {rig.machine.kernel()}")
        assert rig.machine.kernel() == good
        rig.send(pack.zipapp_bytes(), "/tmp/rignode.pyz")
        assert rig.boots() == (good, good)
        steps = [c["steps"] for c in rig.node("snapshot")["journal"]["changes"][:1]]
        rig.note(f"journal: {steps}")
        undone = rig.node("undo")
        assert undone["ok"], undone
        assert rig.boots() == (good, good)


def test_on_lvm_one_boot_would_be_for_ever(boot: Callable[..., Rig], tmp_path: Path) -> None:
    second = tmp_path / "lvm.raw"
    console.run(["truncate", "-s", "512M", second])
    rig = boot(second)
    good = rig.kernels.first
    rig.machine.must(
        "pvcreate -q /dev/vdb && vgcreate -q vg /dev/vdb && lvcreate -q -n boot -L 400M vg && "
        "mkfs.ext4 -q -O ^metadata_csum_seed /dev/vg/boot && mount /dev/vg/boot /mnt && "
        "cp -a /boot/. /mnt/ && umount /mnt && mount /dev/vg/boot /boot",
        900,
    )
    place = rig.node("kernel", {})["boot"]
    assert place["kind"] == "lvm" and place["sticky"], place
    change = {"id": "lvm-1", "deploy": "kernel", "operator": "a@b"}
    step = {"op": "grub", "saved": None, "next": good}
    refused = rig.node("apply", {"change": change, "steps": [step]})
    assert refused["code"] == "sticky" and "lies on lvm" in refused["error"]


def test_a_bond_of_two_cards_is_seen_with_its_slaves(boot: Callable[..., Rig]) -> None:
    rig = boot(nics=3)
    rig.machine.must(
        "modprobe bonding && ip link add bond0 type bond mode active-backup miimon 100 && "
        "ip link set eth1 master bond0 && ip link set eth2 master bond0 && "
        "ip link set bond0 mtu 1400 up && ip addr add 10.99.0.1/24 dev bond0"
    )

    def link(name: str) -> dict[str, object]:
        links = rig.node("snapshot", {})["network"]["links"]
        return next(one for one in links if one["name"] == name)

    bond = link("bond0")
    assert bond["slaves"] == ["eth1", "eth2"] and bond["mtu"] == 1400
    assert bond["bond_slaves_down"] == []
    assert link("eth1")["mtu"] == 1400 and link("eth1")["master"] == "bond0"
    rig.machine.must("ip link set eth2 down; sleep 1")
    assert link("bond0")["bond_slaves_down"] == ["eth2"]
