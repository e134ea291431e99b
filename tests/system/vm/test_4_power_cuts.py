"""QEMU is killed in the middle of a change, ten times: what the guest had not synced is gone."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import core
from schema.render_host import GRUB_PATH, pin_documents
from tests.system.lab.support.german import FILES, TITLE, packages
from tests.system.vm.conftest import NODE, Rig

# A German host: undo of a pin boots what the pin found, where a translated title names it.

UPDATE = "env -u LC_ALL LANG=de_DE.UTF-8 update-grub 2>&1"


def test_undo_of_a_pin_boots_the_kernel_that_a_german_title_names(
    boot: Callable[..., Rig], staged: Path
) -> None:
    rig = boot(base=staged)
    good, other = rig.kernels.first, rig.kernels.second
    root = packages(core.load_settings()) / "root"
    names = ("usr/lib/locale/de_DE.utf8", "usr/share/locale/de/LC_MESSAGES/grub.mo")
    packed = subprocess.run(["tar", "-C", root, "-c", *names], capture_output=True, check=True)
    rig.send(packed.stdout, "/root/german.tar")
    rig.send(FILES["etc/default/locale"].encode(), "/etc/default/locale")
    rig.send(f"GRUB_DEFAULT='{TITLE.format(good)}'\n".encode(), "/root/default")
    rig.machine.must(
        "tar -C / -xf /root/german.tar; "
        # on a serial console grub-mkconfig keeps to ASCII
        "sed -i '/^GRUB_DEFAULT=/d; /^GRUB_TERMINAL=/d' /etc/default/grub; "
        f"cat /root/default >> /etc/default/grub; {UPDATE}; grub-editenv - unset next_entry"
    )
    assert f"mit Linux {good}'" in rig.machine.must("grep menuentry /boot/grub/grub.cfg")
    assert rig.boots() == (good, good)

    steps = [
        {"op": "directory", "path": str(Path(GRUB_PATH).parent), "mode": "0755"},
        {"op": "file", "path": GRUB_PATH, "mode": "0644",
         "content": pin_documents(other, [])[0].content},
        {"op": "grub", "saved": other, "regenerate": True},
    ]  # fmt: skip
    change = {"id": "german-pin", "deploy": "kernel", "operator": "a@b"}
    rig.send(json.dumps({"change": change, "steps": steps}).encode(), "/root/request")
    rig.machine.must(f"LC_ALL=C {NODE} apply < /root/request")
    assert rig.boots() == (other, other)
    assert "with Linux" not in rig.machine.must("cat /boot/grub/grub.cfg")

    # as apt does with a kernel: the menu is written after the change
    rig.machine.must(f"echo GRUB_TIMEOUT=1 > /etc/default/grub.d/50-other.cfg; {UPDATE}")
    answer = rig.node("undo")
    assert answer.get("status") == "ROLLED_BACK" and rig.boots() == (good, good), answer
    rig.note(f"booted after the undo, in {rig.machine.reboot():.0f} s: {rig.machine.kernel()}")
    assert rig.machine.kernel() == good


SEED, CUTS = 20261122, 10
PREPARE = """
systemctl stop rigbook-demo.service 2>/dev/null || true
rm -rf /etc/demo /opt/demo; mkdir -p /etc/demo /opt/demo/old /opt/demo/new
for n in 1 2 3; do echo "old $n" > /etc/demo/$n.conf; done
echo old > /opt/demo/old/version; echo new > /opt/demo/new/version
ln -s old /opt/demo/engine
printf '[Service]\\nExecStart=/bin/sleep infinity\\n' > /etc/systemd/system/rigbook-demo.service
systemctl daemon-reload; sync
"""
LOOK = ("cat /etc/demo/1.conf /etc/demo/2.conf /etc/demo/3.conf /opt/demo/engine/version; "
        "systemctl is-active rigbook-demo.service || true")  # fmt: skip
OLD = ["old 1", "old 2", "old 3", "old", "inactive"]
NEW = ["new 1", "new 2", "new 3", "new", "active"]


def request(name: str) -> dict[str, Any]:
    """A change of three files, a link and a unit."""
    files = [{"op": "file", "path": f"/etc/demo/{n}.conf", "content": f"new {n}\n", "mode": "0644"}
             for n in (1, 2, 3)]  # fmt: skip
    link = {"op": "link", "path": "/opt/demo/engine", "target": "new"}
    unit = {"op": "unit", "unit": "rigbook-demo.service", "enabled": None, "active": "start",
            "daemon_reload": False}  # fmt: skip
    change = {"id": name, "deploy": "serve", "operator": "a@b"}
    return {"change": change, "steps": [*files, link, unit]}


def seen(rig: Rig) -> list[str]:
    """What the three files, the link and the unit are now."""
    return rig.machine.must(LOOK).split("\n")[:-1]


def test_the_power_fails_ten_times_in_a_change_or_its_undo(boot: Callable[..., Rig]) -> None:
    rig, chance = boot(), random.Random(SEED)
    rig.machine.must(PREPARE)
    began = time.monotonic()
    done = rig.node("apply", request("uncut-1"))
    assert done["ok"] and seen(rig) == NEW, done
    took = time.monotonic() - began
    assert rig.node("undo")["status"] == "ROLLED_BACK" and seen(rig) == OLD
    rig.note(f"seed {SEED}; a change takes {took:.1f} s")
    for number in range(1, CUTS + 1):
        verb, asked = "apply", request(f"cut-{number:02}")
        if number % 2 == 0:
            done = rig.node("apply", asked)
            assert done["ok"], done
            verb, asked = "undo", {"change": f"cut-{number:02}"}
        rig.send(json.dumps(asked).encode(), "/root/request")
        rig.machine.must(f"sync; cd /root; {NODE} {verb} < request > said 2>&1 &")
        time.sleep(chance.uniform(0, took))
        rig.machine.power_cut()
        rig.machine.start()
        rig.machine.wait()
        # a unit that was started is down after a boot: nothing enabled it
        now = seen(rig)
        assert all(row in (old, new) for row, old, new in zip(now, OLD, NEW, strict=True)), now
        found = {row["id"]: row["status"] for row in rig.node("journal")["changes"]}
        undone = rig.node("undo")
        assert undone["ok"] and undone["status"] in (None, "ROLLED_BACK"), undone
        rig.note(f"cut {number} in {verb}: {now}; the change was {found.get(f'cut-{number:02}')};"
                 f" undo: {undone['status'] or undone['detail']}")  # fmt: skip
        assert seen(rig) == OLD
    assert rig.node("apply", request("not-cut"))["ok"] and seen(rig) == NEW
    closed = rig.node("close", {"change": "not-cut", "status": "COMMITTED"})
    assert closed["change"]["status"] == "COMMITTED"
