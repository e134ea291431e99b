"""image between two booted hosts with a real docker: what moves, what is refused, what survives."""

from __future__ import annotations

import json
import socket
import tarfile
from pathlib import Path

import pytest

from operations.run import operator
from tests.system.lab.support import moving
from tests.system.rehearsal import Lab

MB = 1_000_000
MOVE, PROOF = "Move the image", "The same content everywhere"


def test_it_moves_and_a_second_run_changes_nothing(small: Lab) -> None:
    """Of four layers, the upper two are the same one."""
    moving.repeat_layer(small, "test1")
    done = small.pyinfra("image", *moving.RECIPE)
    assert done.rc == 0 and done.counts(MOVE)[1] == "2", done.text
    assert moving.image_id(small, "test2") == moving.image_id(small, "test1")
    assert "COMMITTED" in done.text and small.changes("test2")[0]["status"] == "COMMITTED"
    assert not moving.listens(small) and moving.spooled(small) == 0
    again = small.pyinfra("image", *moving.RECIPE)
    assert again.rc == 0 and again.counts("Grand total")[1:] == ("-", "-", "7")
    assert "overlay2" in again.text and "is the same on all 2 nodes" in again.text


def test_one_layer_more_moves_that_layer_only(small: Lab) -> None:
    assert small.pyinfra("image", *moving.RECIPE).rc == 0
    moving.add_layer(small, "test1", MB)
    done = small.pyinfra("image", *moving.RECIPE, "--data", "from=test1")
    assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(small, "test1")
    assert moving.megabytes(done.text, "on the wire") < 1.2


def test_another_image_under_the_tag_is_kept_and_undo_brings_it_back(small: Lab) -> None:
    moving.make_image(small, "test2", MB)
    former = moving.image_id(small, "test2")
    refused = small.pyinfra("image", *moving.RECIPE)
    assert refused.rc == 1 and "image-differs" in refused.text and "from=test1" in refused.text
    assert moving.image_id(small, "test2") == former
    done = small.pyinfra("image", *moving.RECIPE, "--data", "from=test1")
    assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(small, "test1")
    assert moving.image_id(small, "test2", f"rigbook-kept:{former[7:19]}") == former
    change = small.changes("test2")[0]["id"]
    undone = small.pyinfra("rollback", *moving.RECIPE, "--data", f"change={change}")
    assert undone.rc == 0, undone.text
    assert moving.image_id(small, "test2") == former


def test_a_killed_operator_leaves_nothing_listening_and_the_next_run_goes_on(small: Lab) -> None:
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE)
        moving.wait_for(lambda: moving.spooled(small) > 4 * MB)
        assert moving.listens(small)
        moving.kill(started)
        moving.wait_for(lambda: not moving.listens(small), 20)
        moving.wait_for(
            lambda: not moving.at_work(small, "test1") and not moving.at_work(small, "test2"), 30
        )
        assert moving.image_id(small, "test2") == "" and not moving.open_changes(small)
        there = moving.spooled(small)
        assert there > 4 * MB
    done = small.pyinfra("image", *moving.RECIPE)
    assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(small, "test1"), (
        done.text
    )
    assert abs(moving.megabytes(done.text, "came in an earlier run") - there / MB) < 0.2
    assert moving.megabytes(done.text, "on the wire") < 40 - there / MB + 2


def test_a_run_that_was_killed_behind_its_tag_is_taken_up_and_undo_keeps_the_layers(
    small: Lab,
) -> None:
    """node sets the tag, and nobody is there any more to close the change."""
    assert small.pyinfra("image", *moving.RECIPE).rc == 0
    id_ = moving.image_id(small, "test2")
    small.ssh("test2", f"sudo docker tag {id_} rigbook-kept:x && sudo docker rmi {moving.IMAGE}")
    layers = small.ssh("test2", f"sudo docker image inspect {id_} | jq -c '.[0].RootFS.Layers'")
    header = {"id": "20260530T065800Z-image-3c4d", "deploy": "image", "operator": operator()}
    want = {"id": id_, "layers": json.loads(layers)}
    request = json.dumps({"change": header, "image": moving.IMAGE, "want": want})
    small.ssh("test2", "sudo rignode image tag && sudo docker rmi rigbook-kept:x", stdin=request)
    assert small.changes("test2")[0]["status"] == "OPEN"
    done = small.pyinfra("image", *moving.RECIPE)
    assert done.rc == 0 and f"change {header['id']} COMMITTED" in done.text, done.text
    undone = small.pyinfra("rollback", *moving.RECIPE, "--data", f"change={header['id']}")
    assert undone.rc == 0 and moving.image_id(small, "test2") == "", undone.text
    assert moving.image_id(small, "test2", f"rigbook-kept:{id_[7:19]}") == id_
    again = small.pyinfra("image", *moving.RECIPE)
    assert again.rc == 0 and "all layers were here" in again.text, again.text
    assert moving.image_id(small, "test2") == id_


def test_two_transfers_at_once_the_second_is_refused(small: Lab) -> None:
    moving.make_image(small, "test1", 40 * MB)
    # Slow enough to outlast the second run on a machine that has much else to do.
    with moving.slow_fabric(small, 5):
        first = moving.start("image", *moving.RECIPE)
        try:
            moving.wait_for(lambda: moving.spooled(small) > MB // 4)
            second = small.pyinfra("image", *moving.RECIPE)
            assert second.rc == 1 and "transfer-port" in second.text, second.text
        finally:
            moving.kill(first)
    moving.wait_for(lambda: not moving.listens(small), 20)


def test_a_fabric_that_is_away_is_refused_and_not_gone_around(small: Lab) -> None:
    assert small.verb("fabric", "down").rc == 0
    try:
        done = small.pyinfra("image", *moving.RECIPE)
        assert done.rc == 1 and "fabric-" in done.text and "nothing was changed" in done.text
        assert moving.image_id(small, "test2") == ""
        codes = "fabric-down,fabric-route,fabric-ping,fabric-address,fabric-mtu"
        waived = small.pyinfra(
            "image",
            *moving.RECIPE,
            "--data",
            f"waive={codes}",
            "--data",
            "reason=the cable is away",
        )
        assert waived.rc == 0 and "over the LAN" in waived.text, waived.text
        assert moving.image_id(small, "test2") == moving.image_id(small, "test1")
    finally:
        assert small.verb("fabric", "up").rc == 0


def test_a_link_that_goes_and_comes_back_is_waited_for(small: Lab) -> None:
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE)
        moving.wait_for(lambda: moving.spooled(small) > 2 * MB)
        small.ssh("test2", "sudo ip link set bond0 down; sleep 3; sudo ip link set bond0 up")
        out, _ = started.communicate(timeout=180)
    assert started.returncode == 0, out
    assert moving.image_id(small, "test2") == moving.image_id(small, "test1")


def test_a_spool_without_room_is_refused_before_anything_comes(small: Lab) -> None:
    spool = "/var/lib/rigbook/spool"
    small.ssh(
        "test2", f"sudo mkdir -p {spool}; sudo mount -t tmpfs -o size=8m,mode=0700 none {spool}"
    )
    try:
        done = small.pyinfra("image", *moving.RECIPE)
        assert done.rc == 1 and "the transfer needs" in done.text, done.text
        assert moving.spooled(small) == 0 and moving.image_id(small, "test2") == ""
    finally:
        small.ssh("test2", f"sudo umount {spool}")


def test_a_docker_that_restarts_meanwhile_does_not_end_it(small: Lab) -> None:
    """The former image keeps its tag meanwhile, and another name afterwards."""
    moving.make_image(small, "test2", MB)
    former = moving.image_id(small, "test2")
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE, "--data", "from=test1")
        moving.wait_for(lambda: moving.spooled(small) > 2 * MB)
        small.ssh("test2", "sudo systemctl restart docker")
        assert moving.image_id(small, "test2") == former
        out, _ = started.communicate(timeout=180)
    assert started.returncode == 0, out
    assert moving.image_id(small, "test2") == moving.image_id(small, "test1")
    assert moving.image_id(small, "test2", f"rigbook-kept:{former[7:19]}") == former


def test_a_taker_that_reboots_in_the_middle_has_its_old_image(small: Lab) -> None:
    moving.make_image(small, "test2", MB)
    former = moving.image_id(small, "test2")
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE, "--data", "from=test1")
        moving.wait_for(lambda: moving.spooled(small) > 2 * MB)
        assert small.verb("reboot", "test2").rc == 0
        moving.kill(started)
    assert moving.image_id(small, "test2") == former and not moving.open_changes(small)
    moving.wait_for(lambda: not moving.listens(small), 20)
    done = small.pyinfra("image", *moving.RECIPE, "--data", "from=test1")
    assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(small, "test1"), (
        done.text
    )


def test_a_giver_that_is_killed_leaves_the_old_image_and_the_next_run_goes_on(small: Lab) -> None:
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE)
        moving.wait_for(lambda: moving.spooled(small) > 2 * MB)
        small.ssh("test1", "sudo kill -9 $(pgrep -f '[r]ignode.*image offer')")
        out, _ = started.communicate(timeout=240)
    assert started.returncode == 1 and "Traceback" not in out and "run it again" in out, out
    assert moving.image_id(small, "test2") == "" and not moving.listens(small)
    moving.wait_for(lambda: not moving.at_work(small, "test2"), 90)
    there = moving.spooled(small)
    done = small.pyinfra("image", *moving.RECIPE)
    assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(small, "test1"), (
        done.text
    )
    assert abs(moving.megabytes(done.text, "came in an earlier run") - there / MB) < 0.2


def test_a_disk_that_fills_in_the_middle_leaves_the_old_image(small: Lab) -> None:
    """The look before the transfer saw room; somebody else took it meanwhile."""
    moving.make_image(small, "test2", MB)
    former = moving.image_id(small, "test2")
    moving.make_image(small, "test1", 40 * MB)
    spool = "/var/lib/rigbook/spool"
    small.ssh(
        "test2", f"sudo mkdir -p {spool}; sudo mount -t tmpfs -o size=620m,mode=0700 none {spool}"
    )
    try:
        with moving.slow_fabric(small, 40):
            started = moving.start("image", *moving.RECIPE, "--data", "from=test1")
            moving.wait_for(lambda: moving.spooled(small) > 2 * MB)
            small.ssh("test2", f"sudo dd if=/dev/zero of={spool}/other bs=1M 2>/dev/null || true")
            out, _ = started.communicate(timeout=240)
        assert started.returncode == 1 and "Traceback" not in out, out
        assert f"the spool {spool}: No space left" in out and f"df -h {spool}" in out, out
        assert "docker ended" not in out and moving.image_id(small, "test2") == former
        small.ssh("test2", f"sudo rm {spool}/other")
        done = small.pyinfra("image", *moving.RECIPE, "--data", "from=test1")
        assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(
            small, "test1"
        ), done.text
    finally:
        small.ssh("test2", f"sudo umount -l {spool}")


def test_a_damaged_part_never_becomes_an_image(small: Lab) -> None:
    """As after a power cut: the part is there in its length, and its content is not what came."""
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE)
        moving.wait_for(lambda: moving.spooled(small) > 4 * MB)
        moving.kill(started)
        moving.wait_for(lambda: not moving.at_work(small, "test2"), 30)
    damage = "for f in /var/lib/rigbook/spool/*.layer; do printf X | dd of=$f bs=1 seek=2000000 "
    small.ssh("test2", f"sudo sh -c '{damage} conv=notrunc 2>/dev/null; done'")
    found = small.pyinfra("image", *moving.RECIPE)
    assert found.rc == 1 and "is damaged" in found.text and "run it again" in found.text
    assert moving.image_id(small, "test2") == "" and moving.spooled(small) == 0
    done = small.pyinfra("image", *moving.RECIPE)
    assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(small, "test1"), (
        done.text
    )
    left = small.ssh("test2", "sudo docker images -q --filter label=rigbook.part")
    assert left == "", "what kept the layers meanwhile is gone"


def test_layers_that_docker_has_registered_are_not_fetched_again(small: Lab) -> None:
    """A run that is killed behind the lowest layer, while docker hangs, goes on with the next."""
    moving.make_image(small, "test1", 4 * MB)
    moving.add_layer(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE)
        kept = "sudo docker images -q --filter label=rigbook.part"
        moving.wait_for(lambda: small.ssh("test2", kept) and moving.spooled(small) > 4 * MB)
        small.ssh("test2", "sudo kill -STOP $(pidof dockerd)")
        try:
            moving.kill(started)
            moving.wait_for(lambda: not moving.at_work(small, "test2"), 30)
        finally:
            small.ssh("test2", "sudo kill -CONT $(pidof dockerd)")
    assert moving.image_id(small, "test2") == ""
    done = small.pyinfra("image", *moving.RECIPE)
    assert done.rc == 0 and "1 layers, 40." in done.text, done.text
    assert moving.image_id(small, "test2") == moving.image_id(small, "test1")
    assert small.ssh("test2", kept) == ""


def test_a_port_that_is_taken_is_named_and_another_one_works(small: Lab) -> None:
    hold = (
        f'import socket,time; s=socket.create_server(("10.98.0.1", {moving.PORT})); time.sleep(600)'
    )
    pid = small.ssh("test1", f"nohup python3 -c '{hold}' >/dev/null 2>&1 & echo $!")
    try:
        moving.wait_for(lambda: moving.listens(small))
        done = small.pyinfra("image", *moving.RECIPE)
        assert done.rc == 1 and f"port {moving.PORT} of test1" in done.text, done.text
        assert (
            f"--data port={moving.PORT + 1}" in done.text and moving.image_id(small, "test2") == ""
        )
        done = small.pyinfra("image", *moving.RECIPE, "--data", f"port={moving.PORT + 1}")
        assert done.rc == 0 and moving.image_id(small, "test2") == moving.image_id(
            small, "test1"
        ), done.text
    finally:
        small.ssh("test1", f"kill {pid}")


# image by other ways than layers between two stores: archives, other stores; and strangers.

LEFT = """set -e
sudo mkdir -p /var/lib/rigbook/spool && echo half | sudo tee /var/lib/rigbook/spool/0.layer
tar -c -T /dev/null | sudo docker import -c 'LABEL rigbook.part=1' -
"""


def test_a_copy_kept_here_comes_first_to_one_node(small: Lab, tmp_path: Path) -> None:
    """No node has it any more (D18). It says what is to be under the tag, though each host has
    another build there; and it clears what a transfer that was given up left."""
    wanted = moving.image_id(small, "test1")
    kept = small.pyinfra("image", *moving.RECIPE, "--data", f"save={tmp_path}")
    (archive,) = tmp_path.iterdir()
    assert kept.rc == 0 and f"{archive}: " in kept.text, kept.text
    moving.clear(small)
    small.ssh("test1", "bash -s", stdin=LEFT)
    for host in small.hosts:
        moving.make_image(small, host, MB)
    former = {host: moving.image_id(small, host) for host in small.hosts}
    done = small.pyinfra("image", *moving.RECIPE, "--data", f"archive={archive}")
    assert done.rc == 0, done.text
    assert {moving.image_id(small, host) for host in small.hosts} == {wanted}
    left = small.ssh("test1", "sudo docker images -q --filter label=rigbook.part")
    assert left == "" and moving.spooled(small, "test1") == 0
    again = small.pyinfra("image", *moving.RECIPE, "--data", f"archive={archive}")
    assert again.rc == 0 and again.counts("Grand total")[1:] == ("-", "-", "7"), again.text
    change = small.changes("test1")[0]["id"]
    undone = small.pyinfra("rollback", *moving.RECIPE, "--data", f"change={change}")
    assert undone.rc == 0, undone.text
    assert {host: moving.image_id(small, host) for host in small.hosts} == former


def test_a_hostile_archive_is_refused(small: Lab, tmp_path: Path) -> None:
    moving.clear(small)
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/cron.d/x"))
    done = small.pyinfra("image", *moving.RECIPE, "--data", f"archive={archive}")
    assert done.rc == 1 and "leads out of it" in done.text and "Traceback" not in done.text


def test_a_stranger_learns_nothing_on_the_port(small: Lab) -> None:
    """The giver listens on its fabric address only; who is no peer gets no greeting."""
    moving.make_image(small, "test1", 40 * MB)
    with moving.slow_fabric(small, 40):
        started = moving.start("image", *moving.RECIPE)
        try:
            moving.wait_for(lambda: moving.spooled(small) > MB)
            said = small.ssh("test1", f"ss -Hltn sport = :{moving.PORT}")
            assert "10.98.0.1" in said and "0.0.0.0:29680" not in said and "*:29680" not in said
            with pytest.raises(OSError):
                socket.create_connection(("10.89.0.11", moving.PORT), 3)
            key_free = small.ssh("test1", "ps -ww -eo args | grep -c '[r]ignode.*key' || true")
            assert key_free == "0"
        finally:
            moving.kill(started)


def test_another_kind_of_store_is_named_and_gets_nothing(small: Lab) -> None:
    """A real docker on vfs: node does not read or register its layers."""
    before = "sudo cat /etc/docker/daemon.json 2>/dev/null || echo '{}'"
    former = small.ssh("test2", before)
    set_to = "sudo mkdir -p /etc/docker; sudo tee /etc/docker/daemon.json >/dev/null; "
    restart = "sudo systemctl reset-failed docker; sudo systemctl restart docker"
    small.ssh("test2", set_to + restart, stdin='{"storage-driver": "vfs"}')
    try:
        done = small.pyinfra("image", *moving.RECIPE)
        assert done.rc == 1 and "nothing was changed: test2 has vfs" in done.text, done.text
        assert moving.image_id(small, "test2") == "" and not moving.listens(small)
    finally:
        small.ssh("test2", set_to + restart, stdin=former)
