"""A rollback while the disk of /var/lib/rigbook and of the program is full: docker fills /var."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from facts import pack
from tests.system.lab.test_node_over_ssh import send
from tests.system.rehearsal import Lab

TARGET = "/var/lib/rigbook/trial.conf"
SMALL = "/run/rigbook-small"
HELD = ("/var/lib/rigbook", "/usr/local/lib/rigbook")


@pytest.fixture
def full(lab: Lab) -> Iterator[Lab]:
    """test1 with an open change, its state and program on one disk of 64 MiB that is full; the
    operator's program is not on it."""
    made = f"sudo mkdir -p {SMALL} && sudo mount -t tmpfs -o size=64m tmpfs {SMALL}"
    for n, path in enumerate(HELD):
        made += f" && sudo mkdir -p {path} {SMALL}/{n} && sudo mount --bind {SMALL}/{n} {path}"
    lab.ssh("test1", made)
    try:
        lab.ssh("test1", f"head -c 900000 /dev/zero | tr '\\0' o | sudo tee {TARGET} > /dev/null")
        change = {"id": "20261120T000000Z-full", "deploy": "trial", "operator": "t"}
        step = {"op": "file", "path": TARGET, "content": "new\n", "mode": "0640"}
        request: dict[str, object] = {"change": change, "steps": [step]}
        assert send(lab, "test1", *pack.install_call("apply", request))["changed"]
        lab.ssh("test1", f"sudo sh -c 'cd {HELD[1]} && mv rignode-*.pyz rignode-000000000000.pyz'")
        lab.ssh("test1", f"sudo dd if=/dev/zero of={SMALL}/full bs=4k 2> /dev/null", check=False)
        assert lab.ssh("test1", f"df --output=avail {SMALL} | tail -1").strip() == "0"
        yield lab
    finally:
        lab.ssh("test1", f"sudo umount {' '.join(HELD)} {SMALL}")


def test_rollback_works_on_a_full_disk(full: Lab) -> None:
    done = full.pyinfra("rollback", "--data", "change=20261120T000000Z-full")
    assert done.rc == 0, done.text
    assert full.ssh("test1", f"sudo head -c 3 {TARGET}; sudo stat -c %s {TARGET}") == "ooo900000"
    assert "ROLLED_BACK" in full.ssh(
        "test1", "sudo sh -c 'cat /var/lib/rigbook/journal/*-full.json'"
    )
    assert full.ssh("test1", f"ls {HELD[1]}") == "rignode-000000000000.pyz", "run from memory"
