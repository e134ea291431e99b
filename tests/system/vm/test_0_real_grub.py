"""The node's steps with the real grub-mkconfig, apt and dpkg, on the VM's disk; nothing boots."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from facts import pack
from lab import vm
from schema.host import KernelFacts
from schema.render_host import GRUB_DIR, GRUB_PATH, pin_documents
from schema.snapshot import Unreadable

STATE = (
    "cd /boot/grub; sha256sum grub.cfg grubenv; stat -c '%a %u %n' grub.cfg grubenv; "
    "apt-mark showhold; ls -a /boot/grub /etc/default /etc/apt/apt.conf.d; "
    "sha256sum /etc/default/grub"
)


Section = TypeVar("Section")


def read(section: Section | Unreadable) -> Section:
    """A section that must be readable."""
    assert not isinstance(section, Unreadable), section
    return section


class Tree:
    """The VM's disk, mounted; commands run in it by chroot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kernels = vm.kernels()
        (path / "root/rignode.pyz").write_bytes(pack.zipapp_bytes())
        self.changes = 0

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """A shell script as root in the tree."""
        return subprocess.run(
            ["chroot", self.path, "sh", "-c", script], capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip

    def must(self, script: str) -> str:
        """A script's output; it must not fail."""
        done = self.run(f"set -e\n{script}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def node(self, verb: str, request: object = None) -> dict[str, Any]:
        """node's answer."""
        done = subprocess.run(
            ["chroot", self.path, "/usr/bin/python3", "-I", "-B", "/root/rignode.pyz",
             *verb.split(), json.dumps(request or {})],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def facts(self) -> KernelFacts:
        """The typed kernel facts."""
        document = self.node("kernel", {"module": vm.MODULE})
        assert document.pop("ok"), document
        return KernelFacts.model_validate(document)

    def boots(self) -> tuple[str | None, str | None]:
        """(next, default) kernel."""
        grub = read(self.facts().grub)
        return grub.next.kernel, grub.default.kernel

    def pin(self, release: str, again: bool = False) -> dict[str, Any]:
        """The steps of deploys/kernel.py, as one change; `again`: in the change that is open."""
        self.changes += not again
        packages = read(self.facts().apt).pinning[release]
        steps: list[dict[str, Any]] = []
        if not (self.path / GRUB_DIR[1:]).exists():
            steps.append({"op": "directory", "path": GRUB_DIR, "mode": "0755"})
        steps += [
            {"op": "file", "path": d.path, "content": d.content, "mode": d.mode,
             **({} if d.path == GRUB_PATH else {"validate": ["apt-config", "-c", "{tmp}", "dump"]})}
            for d in pin_documents(release, packages)
        ]  # fmt: skip
        steps.append({"op": "hold", "packages": list(packages)})
        steps.append({"op": "grub", "saved": release, "regenerate": True})
        header = {"id": f"change-{self.changes}", "deploy": "kernel", "operator": "a@b"}
        return self.node("apply", {"change": header, "steps": steps})


@pytest.fixture
def tree(disk: tuple[Path, Path], tmp_path: Path) -> Iterator[Tree]:
    """A copy of the VM's disk of its own."""
    copy, mount = tmp_path / "disk.raw", tmp_path / "mnt"
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", disk[0], copy], check=True)
    mount.mkdir()
    with vm.mounted(copy, mount):
        yield Tree(mount)
    copy.unlink()


def test_apt_stages_a_kernel_the_pin_holds_and_undo_restores_all(tree: Tree) -> None:
    good, staged = tree.kernels.first, tree.kernels.second
    tree.must("update-grub 2>&1")
    before = tree.must(STATE)

    # pin and undo: every byte, every hold
    answer = tree.pin(good)
    assert answer["ok"] and answer["changed"], answer
    assert tree.boots() == (good, good)
    listed = tree.must("grub-editenv /boot/grub/grubenv list").strip()
    assert listed.startswith("saved_entry=gnulinux-advanced-") and f">gnulinux-{good}-adv" in listed
    assert tree.must("apt-mark showhold").split() == [
        f"linux-image-{good}", "linux-image-cloud-amd64"]  # fmt: skip
    again = tree.pin(good, again=True)
    assert again["ok"] and not again["changed"], again
    assert tree.node("undo")["status"] == "ROLLED_BACK"
    assert tree.must(STATE) == before

    # the evening: apt makes a kernel without a module the default
    tree.must(vm.UPGRADE)
    facts = tree.facts()
    assert tree.boots() == (staged, staged)
    modules = {k.release: k.module for k in read(facts.kernels)}
    driver = modules[good]
    assert modules[staged] is None and driver and driver.version == vm.DRIVER
    evening = tree.must(STATE)
    assert tree.pin(good)["changed"]
    assert tree.boots() == (good, good)
    update = tree.must("apt-get -s upgrade --with-new-pkgs; apt-get -s autoremove")
    assert f"Remv linux-image-{good}" not in update and "Inst linux-image" not in update

    # one boot of the other kernel, then GRUB would fall back
    header = {"id": "change-3x", "deploy": "kernel", "operator": "a@b"}
    tree.node("close", {"change": f"change-{tree.changes}", "status": "COMMITTED"})
    step = {"op": "grub", "saved": good, "next": staged}
    assert tree.node("apply", {"change": header, "steps": [step]})["changed"]
    assert tree.boots() == (staged, good)
    assert "next_entry=" in tree.must("grub-editenv /boot/grub/grubenv list")
    # what GRUB itself does at that boot
    tree.must("grub-editenv /boot/grub/grubenv unset next_entry")
    assert tree.boots() == (good, good)
    assert tree.node("undo")["ok"]
    assert tree.boots() == (good, good)

    # the pinned kernel is removed behind our back: GRUB would take the first entry
    tree.must(f"rm /boot/vmlinuz-{good} /boot/initrd.img-{good}; update-grub 2>&1")
    facts = tree.facts()
    assert read(facts.grub).default.how == "first"
    assert tree.boots() == (staged, staged)
    assert tree.node("undo", {"change": f"change-{tree.changes}"})["ok"]
    assert tree.boots() == (staged, staged) and evening


def test_what_fails_changes_nothing(tree: Tree) -> None:
    good = tree.kernels.first
    tree.must(f"mkdir -p {GRUB_DIR}; update-grub 2>&1")
    before = tree.must(STATE)

    def refused(code: str, *words: str, release: str = good) -> None:
        header = {"id": f"bad-{code}", "deploy": "kernel", "operator": "a@b"}
        file = {"op": "file", "path": GRUB_PATH, "mode": "0644",
                "content": pin_documents(good, [])[0].content}  # fmt: skip
        step = {"op": "grub", "saved": release, "regenerate": True}
        answer = tree.node("apply", {"change": header, "steps": [file, step]})
        assert answer.get("code") == code, answer
        for word in (*words, "nothing was changed"):
            assert word in answer["error"]

    refused("no_entry", "no entry for 6.9.9-1-gone", good, release="6.9.9-1-gone")
    tree.must("printf '#!/bin/sh\\nexit 7\\n' > /etc/grub.d/09_bad; chmod +x /etc/grub.d/09_bad")
    refused("update_grub_failed")
    tree.must("printf '#!/bin/sh\\necho \"menuentry {\"\\n' > /etc/grub.d/09_bad")
    refused("update_grub_failed")
    tree.must(f"rm /etc/grub.d/09_bad; echo GRUB_DEFAULT=0 > {GRUB_DIR}/zzz.cfg")
    refused("not_effective", f"GRUB_DEFAULT=0 in {GRUB_DIR}/zzz.cfg")
    tree.must(f"rm {GRUB_DIR}/zzz.cfg; mv /boot/grub/grubenv /root/")
    refused("grubenv_bad", "missing")
    tree.must("mv /root/grubenv /boot/grub/; dd if=/dev/zero of=/filled bs=1M 2>/dev/null || true")
    assert shutil.disk_usage(tree.path).free < 1 << 20
    full = tree.pin(good)
    assert not full["ok"], full
    tree.must("rm /filled")
    # what the full disk kept from being taken back is in the journal, for undo
    assert "nothing was changed" in full["error"] or tree.node("undo")["ok"], full
    assert tree.must(STATE) == before
