"""A German host: undo of a pin boots what the pin found, where a translated title names it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.core import settings
from schema.render.kernel_files import GRUB_PATH, pin_documents
from tests.system.lab.support.german import FILES, TITLE, packages
from tests.system.vm.conftest import NODE, Rig

UPDATE = "env -u LC_ALL LANG=de_DE.UTF-8 update-grub 2>&1"


def test_undo_of_a_pin_boots_the_kernel_that_a_german_title_names(
    boot: Callable[..., Rig], staged: Path
) -> None:
    rig = boot(base=staged)
    good, other = rig.kernels.first, rig.kernels.second
    root = packages(settings.load()) / "root"
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
