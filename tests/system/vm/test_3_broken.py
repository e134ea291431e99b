"""What breaks while a kernel is pinned: power, update-grub, /boot; what GRUB cannot take back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gates import fabric
from lab import core
from lab.vm import MODULE
from schema.render_host import GRUB_PATH, pin_documents
from schema.snapshot import NodeSnapshot, Unreadable
from tests.system.vm.conftest import DEPLOY_S, NODE, PIN, Rig
from tests.unit.builders.rigs import spark_plan

CUTTER = Path(__file__).parent / "cutter.py"


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


POINTS = ("update-grub", "grubenv", "renamed", "settled", "flushed")
# Real update-grub stops here while its output is half written.
SLOW = """#!/bin/sh
[ -e /run/cut ] || exit 0
echo '# half'; sleep 1; printf '\nCUT THE POWER\n' > /dev/ttyS0; sleep 3600
"""


def test_the_power_fails_during_the_pin(boot: Callable[..., Rig], staged: Path) -> None:
    """The first entry is a kernel without a driver: any damage to GRUB's files would boot it."""
    rig = boot(base=staged)
    good = rig.kernels.first
    rig.send(CUTTER.read_bytes(), "/root/cutter.py")
    rig.send(SLOW.encode(), "/etc/grub.d/20_slow", "0755")
    pin = pin_documents(good, [])[0]
    steps = [
        {"op": "directory", "path": str(Path(GRUB_PATH).parent), "mode": "0755"},
        {"op": "file", "path": GRUB_PATH, "mode": "0644", "content": pin.content},
        {"op": "grub", "saved": good, "regenerate": True},
    ]

    def request(name: str) -> str:
        change = {"id": name, "deploy": "kernel", "operator": "a@b"}
        return json.dumps({"change": change, "steps": steps})

    rig.send(request("first-pin").encode(), "/root/first")
    rig.machine.must(f"{NODE} apply < /root/first")
    assert rig.node("close", {"change": "first-pin", "status": "COMMITTED"})["ok"]
    assert rig.boots() == (good, good)
    path = rig.machine.must("grub-editenv - list | sed -n 's/^saved_entry=//p'").strip()

    for number, point in enumerate(POINTS, 1):
        # so that both files are to change: a setting of update-grub, and next_entry to take away
        rig.send(request(f"power-cut-{number}").encode(), "/root/request")
        rig.machine.must(
            f"printf 'GRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX_DEFAULT=cut={number}\n'"
            f" > /etc/default/grub.d/50-other.cfg; grub-editenv - set 'next_entry={path}'; sync"
        )
        program = f"python3 cutter.py /opt/node {point}"
        if point == "update-grub":
            rig.machine.must("touch /run/cut")
            program = NODE
        rig.machine.must(f"cd /root; {program} apply < request > said 2>&1 &")
        rig.machine.said("CUT THE POWER")
        rig.machine.power_cut()
        rig.note(f"power cut at: {point}")
        rig.machine.start()
        rig.note(f"boots by itself after {rig.machine.wait():.0f} s: {rig.machine.kernel()}")
        assert rig.machine.kernel() == good
        assert rig.boots() == (good, good)
        undone = rig.node("undo")
        assert undone["ok"], undone
        rig.note(f"undo: {undone['status'] or undone['detail']}: {undone['steps']}")
        assert rig.boots() == (good, good)
    # and not cut, the same change is done
    rig.send(request("not-cut").encode(), "/root/request")
    rig.machine.must(f"{NODE} apply < /root/request", 600)
    assert rig.boots() == (good, good)


def test_on_lvm_a_kernel_is_pinned_and_not_tried(
    boot: Callable[..., Rig], staged: Path, tmp_path: Path
) -> None:
    """GRUB cannot take next_entry back there: one boot would be for ever."""
    second = tmp_path / "lvm.raw"
    core.run_console(["truncate", "-s", "512M", second])
    rig = boot(second, base=staged)
    good, other = rig.kernels.first, rig.kernels.second
    rig.machine.must(
        "pvcreate -q /dev/vdb && vgcreate -q vg /dev/vdb && lvcreate -q -n boot -L 400M vg && "
        "mkfs.ext4 -q -O ^metadata_csum_seed,^orphan_file /dev/vg/boot && "
        "mount /dev/vg/boot /mnt && cp -a /boot/. /mnt/ && umount /mnt && "
        "mv /boot /boot.was && mkdir /boot && mount /dev/vg/boot /boot && "
        "echo '/dev/vg/boot /boot ext4 defaults,x-systemd.device-timeout=900 0 0' >> /etc/fstab && "
        "grub-install /dev/vda && update-grub && "
        f"install -D -m 0644 -t /lib/modules/{other}/updates /srv/modules/{other}/{MODULE}.ko && "
        f"depmod {other}",
        DEPLOY_S,
    )
    place = rig.node("kernel", {})["boot"]
    assert place["kind"] == "lvm" and place["sticky"], place
    status, output = rig.deploy(*PIN)
    assert status == 0, output
    attempt = ("deploys/kernel.py", "-y", "--data", f"candidate={other}")
    status, output = rig.deploy(*attempt)
    assert status == 1 and "boot-sticky" in output and "lies on lvm" in output
    assert rig.boots() == (good, good)


def test_a_bond_of_two_cards_is_seen_with_its_slaves(boot: Callable[..., Rig]) -> None:
    """Real bonding driver, the fabric's gates: a slave with another MTU, and one that is down."""
    rig = boot(cards=("virtio-net-pci", "virtio-net-pci"))
    mtu, device = 1400, "bond0"
    plan = spark_plan(fabric_mtu=mtu, fabric_device=device)
    node = plan.rig.head
    rig.machine.must(
        f"modprobe bonding max_bonds=0 && ip link add {device} type bond mode active-backup "
        f"miimon 100 && ip link set eth1 master {device} && ip link set eth2 master {device} && "
        f"ip link set {device} mtu {mtu} up && ip addr add {node.fabric_address}/24 dev {device}; "
        "sleep 2"
    )
    gates = (fabric.fabric_link, fabric.fabric_mtu, fabric.bond_slaves)

    def found() -> tuple[NodeSnapshot, list[tuple[str, str]]]:
        document = rig.node("snapshot", {})
        assert document.pop("ok", True)
        seen = NodeSnapshot.model_validate(document)
        rows = [v for gate in gates for v in gate(plan, {node.name: seen})]
        for row in rows:
            rig.note(f"{row.severity} {row.code}: {row.summary}; {row.evidence}")
        return seen, [(row.code, row.summary) for row in rows]

    seen, rows = found()
    assert not isinstance(seen.network, Unreadable)
    bond = next(link for link in seen.network.links if link.name == device)
    assert (bond.kind, bond.slaves, bond.mtu) == ("bond", ("eth1", "eth2"), mtu)
    assert rows == []
    rig.machine.must("ip link set eth2 down; sleep 1")
    _, rows = found()
    assert [code for code, _ in rows] == ["bond-slave-down"] and "eth2" in rows[0][1]
    rig.machine.must(f"ip link set eth2 up; ip link set {device} mtu 1300; sleep 2")
    _, rows = found()
    assert [code for code, _ in rows] == ["fabric-mtu"]
    assert f"{device}, eth1, eth2" in rows[0][1]
    rig.machine.must(f"ip link del {device}")
    assert [code for code, _ in found()[1]] == ["fabric-down"]
