"""image between two booted hosts with a real docker: what moves, what is refused, what survives."""

from __future__ import annotations

import json

from operations.change.ownership import operator
from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

MB = 1_000_000
MOVE, PROOF = "Move the image", "The same content everywhere"


def test_it_moves_and_a_second_run_changes_nothing(small: Lab) -> None:
    """Of four layers, the upper two are the same one."""
    m.repeat_layer(small, "test1")
    done = small.pyinfra("image", *m.RECIPE)
    assert done.rc == 0 and done.counts(MOVE)[1] == "2", done.text
    assert m.image_id(small, "test2") == m.image_id(small, "test1")
    assert "COMMITTED" in done.text and small.changes("test2")[0]["status"] == "COMMITTED"
    assert not m.listens(small) and m.spooled(small) == 0
    again = small.pyinfra("image", *m.RECIPE)
    assert again.rc == 0 and again.counts("Grand total")[1:] == ("-", "-", "7")
    assert "overlay2" in again.text and "is the same on all 2 nodes" in again.text


def test_one_layer_more_moves_that_layer_only(small: Lab) -> None:
    assert small.pyinfra("image", *m.RECIPE).rc == 0
    m.add_layer(small, "test1", MB)
    done = small.pyinfra("image", *m.RECIPE, "--data", "from=test1")
    assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1")
    assert m.megabytes(done.text, "on the wire") < 1.2


def test_another_image_under_the_tag_is_kept_and_undo_brings_it_back(small: Lab) -> None:
    m.make_image(small, "test2", MB)
    former = m.image_id(small, "test2")
    refused = small.pyinfra("image", *m.RECIPE)
    assert refused.rc == 1 and "image-differs" in refused.text and "from=test1" in refused.text
    assert m.image_id(small, "test2") == former
    done = small.pyinfra("image", *m.RECIPE, "--data", "from=test1")
    assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1")
    assert m.image_id(small, "test2", f"rigbook-kept:{former[7:19]}") == former
    change = small.changes("test2")[0]["id"]
    undone = small.pyinfra("rollback", *m.RECIPE, "--data", f"change={change}")
    assert undone.rc == 0, undone.text
    assert m.image_id(small, "test2") == former


def test_a_killed_operator_leaves_nothing_listening_and_the_next_run_goes_on(small: Lab) -> None:
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE)
        m.wait_for(lambda: m.spooled(small) > 4 * MB)
        assert m.listens(small)
        m.kill(started)
        m.wait_for(lambda: not m.listens(small), 20)
        m.wait_for(lambda: not m.at_work(small, "test1") and not m.at_work(small, "test2"), 30)
        assert m.image_id(small, "test2") == "" and not m.open_changes(small)
        there = m.spooled(small)
        assert there > 4 * MB
    done = small.pyinfra("image", *m.RECIPE)
    assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1"), done.text
    assert abs(m.megabytes(done.text, "came in an earlier run") - there / MB) < 0.2
    assert m.megabytes(done.text, "on the wire") < 40 - there / MB + 2


def test_a_run_that_was_killed_behind_its_tag_is_taken_up_and_undo_keeps_the_layers(
    small: Lab,
) -> None:
    """node sets the tag, and nobody is there any more to close the change."""
    assert small.pyinfra("image", *m.RECIPE).rc == 0
    id_ = m.image_id(small, "test2")
    small.ssh("test2", f"sudo docker tag {id_} rigbook-kept:x && sudo docker rmi {m.IMAGE}")
    layers = small.ssh("test2", f"sudo docker image inspect {id_} | jq -c '.[0].RootFS.Layers'")
    header = {"id": "20260530T065800Z-image-3c4d", "deploy": "image", "operator": operator()}
    want = {"id": id_, "layers": json.loads(layers)}
    request = json.dumps({"change": header, "image": m.IMAGE, "want": want})
    small.ssh("test2", "sudo rignode image tag && sudo docker rmi rigbook-kept:x", stdin=request)
    assert small.changes("test2")[0]["status"] == "OPEN"
    done = small.pyinfra("image", *m.RECIPE)
    assert done.rc == 0 and f"change {header['id']} COMMITTED" in done.text, done.text
    undone = small.pyinfra("rollback", *m.RECIPE, "--data", f"change={header['id']}")
    assert undone.rc == 0 and m.image_id(small, "test2") == "", undone.text
    assert m.image_id(small, "test2", f"rigbook-kept:{id_[7:19]}") == id_
    again = small.pyinfra("image", *m.RECIPE)
    assert again.rc == 0 and "all layers were here" in again.text, again.text
    assert m.image_id(small, "test2") == id_


def test_two_transfers_at_once_the_second_is_refused(small: Lab) -> None:
    m.make_image(small, "test1", 40 * MB)
    # Slow enough to outlast the second run on a machine that has much else to do.
    with m.slow_fabric(small, 5):
        first = m.start("image", *m.RECIPE)
        try:
            m.wait_for(lambda: m.spooled(small) > MB // 4)
            second = small.pyinfra("image", *m.RECIPE)
            assert second.rc == 1 and "transfer-port" in second.text, second.text
        finally:
            m.kill(first)
    m.wait_for(lambda: not m.listens(small), 20)


def test_a_fabric_that_is_away_is_refused_and_not_gone_around(small: Lab) -> None:
    assert small.verb("fabric", "down").rc == 0
    try:
        done = small.pyinfra("image", *m.RECIPE)
        assert done.rc == 1 and "fabric-" in done.text and "nothing was changed" in done.text
        assert m.image_id(small, "test2") == ""
        codes = "fabric-down,fabric-route,fabric-ping,fabric-address,fabric-mtu"
        waived = small.pyinfra(
            "image", *m.RECIPE, "--data", f"waive={codes}", "--data", "reason=the cable is away"
        )
        assert waived.rc == 0 and "over the LAN" in waived.text, waived.text
        assert m.image_id(small, "test2") == m.image_id(small, "test1")
    finally:
        assert small.verb("fabric", "up").rc == 0


def test_a_link_that_goes_and_comes_back_is_waited_for(small: Lab) -> None:
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE)
        m.wait_for(lambda: m.spooled(small) > 2 * MB)
        small.ssh("test2", "sudo ip link set bond0 down; sleep 3; sudo ip link set bond0 up")
        out, _ = started.communicate(timeout=180)
    assert started.returncode == 0, out
    assert m.image_id(small, "test2") == m.image_id(small, "test1")


def test_a_spool_without_room_is_refused_before_anything_comes(small: Lab) -> None:
    spool = "/var/lib/rigbook/spool"
    small.ssh(
        "test2", f"sudo mkdir -p {spool}; sudo mount -t tmpfs -o size=8m,mode=0700 none {spool}"
    )
    try:
        done = small.pyinfra("image", *m.RECIPE)
        assert done.rc == 1 and "the transfer needs" in done.text, done.text
        assert m.spooled(small) == 0 and m.image_id(small, "test2") == ""
    finally:
        small.ssh("test2", f"sudo umount {spool}")


def test_a_docker_that_restarts_meanwhile_does_not_end_it(small: Lab) -> None:
    """The former image keeps its tag meanwhile, and another name afterwards."""
    m.make_image(small, "test2", MB)
    former = m.image_id(small, "test2")
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE, "--data", "from=test1")
        m.wait_for(lambda: m.spooled(small) > 2 * MB)
        small.ssh("test2", "sudo systemctl restart docker")
        assert m.image_id(small, "test2") == former
        out, _ = started.communicate(timeout=180)
    assert started.returncode == 0, out
    assert m.image_id(small, "test2") == m.image_id(small, "test1")
    assert m.image_id(small, "test2", f"rigbook-kept:{former[7:19]}") == former


def test_a_taker_that_reboots_in_the_middle_has_its_old_image(small: Lab) -> None:
    m.make_image(small, "test2", MB)
    former = m.image_id(small, "test2")
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE, "--data", "from=test1")
        m.wait_for(lambda: m.spooled(small) > 2 * MB)
        assert small.verb("reboot", "test2").rc == 0
        m.kill(started)
    assert m.image_id(small, "test2") == former and not m.open_changes(small)
    m.wait_for(lambda: not m.listens(small), 20)
    done = small.pyinfra("image", *m.RECIPE, "--data", "from=test1")
    assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1"), done.text


def test_a_giver_that_is_killed_leaves_the_old_image_and_the_next_run_goes_on(small: Lab) -> None:
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE)
        m.wait_for(lambda: m.spooled(small) > 2 * MB)
        small.ssh("test1", "sudo kill -9 $(pgrep -f '[r]ignode.*image offer')")
        out, _ = started.communicate(timeout=240)
    assert started.returncode == 1 and "Traceback" not in out and "run it again" in out, out
    assert m.image_id(small, "test2") == "" and not m.listens(small)
    m.wait_for(lambda: not m.at_work(small, "test2"), 90)
    there = m.spooled(small)
    done = small.pyinfra("image", *m.RECIPE)
    assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1"), done.text
    assert abs(m.megabytes(done.text, "came in an earlier run") - there / MB) < 0.2


def test_a_disk_that_fills_in_the_middle_leaves_the_old_image(small: Lab) -> None:
    """The look before the transfer saw room; somebody else took it meanwhile."""
    m.make_image(small, "test2", MB)
    former = m.image_id(small, "test2")
    m.make_image(small, "test1", 40 * MB)
    spool = "/var/lib/rigbook/spool"
    small.ssh(
        "test2", f"sudo mkdir -p {spool}; sudo mount -t tmpfs -o size=620m,mode=0700 none {spool}"
    )
    try:
        with m.slow_fabric(small, 40):
            started = m.start("image", *m.RECIPE, "--data", "from=test1")
            m.wait_for(lambda: m.spooled(small) > 2 * MB)
            small.ssh("test2", f"sudo dd if=/dev/zero of={spool}/other bs=1M 2>/dev/null || true")
            out, _ = started.communicate(timeout=240)
        assert started.returncode == 1 and "Traceback" not in out, out
        assert f"the spool {spool}: No space left" in out and f"df -h {spool}" in out, out
        assert "docker ended" not in out and m.image_id(small, "test2") == former
        small.ssh("test2", f"sudo rm {spool}/other")
        done = small.pyinfra("image", *m.RECIPE, "--data", "from=test1")
        assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1"), done.text
    finally:
        small.ssh("test2", f"sudo umount -l {spool}")


def test_a_damaged_part_never_becomes_an_image(small: Lab) -> None:
    """As after a power cut: the part is there in its length, and its content is not what came."""
    m.make_image(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE)
        m.wait_for(lambda: m.spooled(small) > 4 * MB)
        m.kill(started)
        m.wait_for(lambda: not m.at_work(small, "test2"), 30)
    damage = "for f in /var/lib/rigbook/spool/*.layer; do printf X | dd of=$f bs=1 seek=2000000 "
    small.ssh("test2", f"sudo sh -c '{damage} conv=notrunc 2>/dev/null; done'")
    found = small.pyinfra("image", *m.RECIPE)
    assert found.rc == 1 and "is damaged" in found.text and "run it again" in found.text
    assert m.image_id(small, "test2") == "" and m.spooled(small) == 0
    done = small.pyinfra("image", *m.RECIPE)
    assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1"), done.text
    left = small.ssh("test2", "sudo docker images -q --filter label=rigbook.part")
    assert left == "", "what kept the layers meanwhile is gone"


def test_layers_that_docker_has_registered_are_not_fetched_again(small: Lab) -> None:
    """A run that is killed behind the lowest layer, while docker hangs, goes on with the next."""
    m.make_image(small, "test1", 4 * MB)
    m.add_layer(small, "test1", 40 * MB)
    with m.slow_fabric(small, 40):
        started = m.start("image", *m.RECIPE)
        kept = "sudo docker images -q --filter label=rigbook.part"
        m.wait_for(lambda: small.ssh("test2", kept) and m.spooled(small) > 4 * MB)
        small.ssh("test2", "sudo kill -STOP $(pidof dockerd)")
        try:
            m.kill(started)
            m.wait_for(lambda: not m.at_work(small, "test2"), 30)
        finally:
            small.ssh("test2", "sudo kill -CONT $(pidof dockerd)")
    assert m.image_id(small, "test2") == ""
    done = small.pyinfra("image", *m.RECIPE)
    assert done.rc == 0 and "1 layers, 40." in done.text, done.text
    assert m.image_id(small, "test2") == m.image_id(small, "test1")
    assert small.ssh("test2", kept) == ""


def test_a_port_that_is_taken_is_named_and_another_one_works(small: Lab) -> None:
    hold = f'import socket,time; s=socket.create_server(("10.98.0.1", {m.PORT})); time.sleep(600)'
    pid = small.ssh("test1", f"nohup python3 -c '{hold}' >/dev/null 2>&1 & echo $!")
    try:
        m.wait_for(lambda: m.listens(small))
        done = small.pyinfra("image", *m.RECIPE)
        assert done.rc == 1 and f"port {m.PORT} of test1" in done.text, done.text
        assert f"--data port={m.PORT + 1}" in done.text and m.image_id(small, "test2") == ""
        done = small.pyinfra("image", *m.RECIPE, "--data", f"port={m.PORT + 1}")
        assert done.rc == 0 and m.image_id(small, "test2") == m.image_id(small, "test1"), done.text
    finally:
        small.ssh("test1", f"kill {pid}")
