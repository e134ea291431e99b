"""image by other ways than layers between two stores: archives, other stores; and strangers."""

from __future__ import annotations

import socket
import tarfile
from pathlib import Path

import pytest

from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

MB = 1_000_000
LEFT = """set -e
sudo mkdir -p /var/lib/rigbook/spool && echo half | sudo tee /var/lib/rigbook/spool/0.layer
tar -c -T /dev/null | sudo docker import -c 'LABEL rigbook.part=1' -
"""


def test_a_copy_kept_here_comes_first_to_one_node(small: Lab, tmp_path: Path) -> None:
    """No node has it any more (D18). It says what is to be under the tag, though each host has
    another build there; and it clears what a transfer that was given up left."""
    wanted = m.image_id(small, "test1")
    kept = small.pyinfra("image", *m.RECIPE, "--data", f"save={tmp_path}")
    (archive,) = tmp_path.iterdir()
    assert kept.rc == 0 and f"{archive}: " in kept.text, kept.text
    m.clear(small)
    small.ssh("test1", "bash -s", stdin=LEFT)
    for host in small.hosts:
        m.make_image(small, host, MB)
    former = {host: m.image_id(small, host) for host in small.hosts}
    done = small.pyinfra("image", *m.RECIPE, "--data", f"archive={archive}")
    assert done.rc == 0, done.text
    assert {m.image_id(small, host) for host in small.hosts} == {wanted}
    left = small.ssh("test1", "sudo docker images -q --filter label=rigbook.part")
    assert left == "" and m.spooled(small, "test1") == 0
    again = small.pyinfra("image", *m.RECIPE, "--data", f"archive={archive}")
    assert again.rc == 0 and again.counts("Grand total")[1:] == ("-", "-", "7"), again.text
    change = small.changes("test1")[0]["id"]
    undone = small.pyinfra("rollback", *m.RECIPE, "--data", f"change={change}")
    assert undone.rc == 0, undone.text
    assert {host: m.image_id(small, host) for host in small.hosts} == former


def test_a_hostile_archive_is_refused(small: Lab, tmp_path: Path) -> None:
    m.clear(small)
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/cron.d/x"))
    done = small.pyinfra("image", *m.RECIPE, "--data", f"archive={archive}")
    assert done.rc == 1 and "leads out of it" in done.text and "Traceback" not in done.text


def test_a_stranger_learns_nothing_on_the_port(small: Lab) -> None:
    """The giver listens on its fabric address only; who is no peer gets no greeting."""
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE)
        try:
            m.wait_for(lambda: m.spooled(small) > MB)
            said = small.ssh("test1", f"ss -Hltn sport = :{m.PORT}")
            assert "10.98.0.1" in said and "0.0.0.0:29680" not in said and "*:29680" not in said
            with pytest.raises(OSError):
                socket.create_connection(("10.89.0.11", m.PORT), 3)
            key_free = small.ssh("test1", "ps -ww -eo args | grep -c '[r]ignode.*key' || true")
            assert key_free == "0"
        finally:
            m.kill(started)


def test_another_kind_of_store_is_named_and_gets_nothing(small: Lab) -> None:
    """A real docker on vfs: node does not read or register its layers."""
    before = "sudo cat /etc/docker/daemon.json 2>/dev/null || echo '{}'"
    former = small.ssh("test2", before)
    set_to = "sudo mkdir -p /etc/docker; sudo tee /etc/docker/daemon.json >/dev/null; "
    restart = "sudo systemctl reset-failed docker; sudo systemctl restart docker"
    small.ssh("test2", set_to + restart, stdin='{"storage-driver": "vfs"}')
    try:
        done = small.pyinfra("image", *m.RECIPE)
        assert done.rc == 1 and "nothing was changed: test2 has vfs" in done.text, done.text
        assert m.image_id(small, "test2") == "" and not m.listens(small)
    finally:
        small.ssh("test2", set_to + restart, stdin=former)
