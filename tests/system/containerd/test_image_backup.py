"""A backup of an image of the containerd store: back under its digest, without a registry."""

from __future__ import annotations

from tests.system.containerd.test_image import BOTH, MB, bare, make, pyinfra
from tests.system.lab.support import moving as m
from tests.system.lab.test_image_backup import BACKUPS, node
from tests.system.rehearsal import Lab

__all__ = ["bare"]
INSPECT = "sudo docker image inspect --format '{{{{.Id}}}}' {} 2>/dev/null || true"


def test_a_nightly_whose_registry_is_gone_comes_back_by_its_digest(bare: Lab) -> None:
    image = make(bare, "test2", 8 * MB)
    assert pyinfra(bare, "image", *m.RECIPE, rig=BOTH).rc == 0  # the program is there then
    name = f"rigbook/small@{image}"
    bare.ssh("test2", f"sudo rm -rf {BACKUPS}")
    made = node(bare, "test2", "image backup", image=name)
    assert made["ok"] and made["stored"] and "registry" not in made["detail"], made
    assert node(bare, "test2", "tree verify", backup=made["backup"])["ok"]
    assert not node(bare, "test2", "image backup", image=name)["stored"]
    bare.ssh("test2", "sudo docker rmi -f rigbook/small:1 >/dev/null")
    assert bare.ssh("test2", INSPECT.format(name)) == ""
    back = node(bare, "test2", "image restore", backup=made["backup"])
    assert back["ok"] and back["loaded"], back
    assert bare.ssh("test2", INSPECT.format(name)) == image
    assert bare.ssh("test2", INSPECT.format(f"rigbook/small:rigbook-{image[7:19]}")) == image
    undone = node(bare, "test2", "undo", change=back["change"])
    assert undone["status"] == "ROLLED_BACK" and bare.ssh("test2", INSPECT.format(name)) == ""
    assert not [row for row in bare.changes("test2") if row["status"] == "OPEN"]
