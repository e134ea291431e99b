"""A backup of an image on booted hosts with a real docker (overlay2), and its way back."""

from __future__ import annotations

import json
from typing import Any

from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

MB = 1_000_000
BACKUPS = "/var/lib/rigbook/backups"
# an image with a program in it, and bytes that nothing shares
RUNS = """set -e
rm -rf /tmp/runs && mkdir /tmp/runs && cd /tmp/runs
cp --parents -L /usr/bin/true $(ldd /usr/bin/true | grep -o '/[^ ]*') .
head -c {size} /dev/urandom > blob && ln blob hard && mkdir empty
tar -c . | sudo docker import - {image} >/dev/null
rm -rf /tmp/runs
"""
INSPECT = "sudo docker image inspect {} | jq -c '.[0] | [.Id, .RootFS.Layers, .Config]'"


def make(lab: Lab, host: str, size: int = 8 * MB) -> None:
    """An image of two layers whose containers run; the program is on the host, too."""
    lab.ssh(host, "bash -s", stdin=RUNS.format(size=size, image=m.IMAGE))
    m.add_layer(lab, host, MB)
    if not lab.ssh(host, "command -v rignode || true"):
        assert lab.pyinfra("image", *m.RECIPE).rc == 0


def known(lab: Lab, host: str) -> Any:
    """What docker says of the image; None where it has none."""
    said = lab.ssh(host, INSPECT.format(m.IMAGE) + " 2>/dev/null || true")
    found = json.loads(said or "null")
    return found if found and found[0] else None


def starts(lab: Lab, host: str) -> bool:
    """Whether a container of it runs."""
    said = lab.ssh(host, f"sudo docker run --rm --network none {m.IMAGE} /usr/bin/true && echo ran")
    return said == "ran"


def remove(lab: Lab, host: str) -> None:
    """The image and its layers go."""
    lab.ssh(host, f"sudo docker rmi -f {m.IMAGE} >/dev/null; sudo docker image prune -f >/dev/null")
    assert known(lab, host) is None


def node(lab: Lab, host: str, verb: str, **request: object) -> dict[str, Any]:
    """A verb's answer."""
    said = lab.ssh(host, f"sudo rignode {verb} || true", stdin=json.dumps(request))
    return dict(json.loads(said))


def test_an_image_comes_back_after_docker_lost_it(small: Lab) -> None:
    make(small, "test1")
    assert small.pyinfra("image", *m.RECIPE).rc == 0
    for host in small.hosts:
        small.ssh(host, f"sudo rm -rf {BACKUPS}")
    before = known(small, "test2")
    done = small.pyinfra("backup", *m.RECIPE)
    assert done.rc == 0 and done.text.count("is whole: 7 members") == 2, done.text
    again = small.pyinfra("backup", *m.RECIPE)
    assert again.rc == 0 and again.counts("Grand total")[1] == "-", again.text
    assert again.text.count("is verified and holds the same files") == 2, again.text

    (row,) = node(small, "test2", "tree list")["backups"]
    assert row["tree"] == m.IMAGE and row["verified_unix_s"] and row["image"]["id"] == before[0]
    remove(small, "test2")
    back = node(small, "test2", "image restore", backup=row["id"])
    assert back["ok"] and back["loaded"], back
    assert known(small, "test2") == before and starts(small, "test2")
    undone = node(small, "test2", "undo", change=back["change"])
    assert undone["status"] == "ROLLED_BACK" and known(small, "test2") is None, undone
    # the layers are still there, under another name: nothing is loaded
    back = node(small, "test2", "image restore", backup=row["id"])
    assert back["ok"] and not back["loaded"] and known(small, "test2") == before, back
    assert node(small, "test2", "close", change=back["change"], status="COMMITTED")["ok"]
    again_back = node(small, "test2", "image restore", backup=row["id"])
    assert again_back["ok"] and not again_back["changed"] and again_back["change"] is None


def test_by_hand_with_zstd_and_docker(small: Lab) -> None:
    make(small, "test1")
    before = known(small, "test1")
    made = node(small, "test1", "image backup", image=m.IMAGE)["backup"]
    remove(small, "test1")
    payload = f"{BACKUPS}/{made}/payload.tar.zst"
    small.ssh("test1", f"sudo zstd -dc {payload} | sudo docker load >/dev/null")
    small.ssh("test1", f"sudo docker tag {before[0]} {m.IMAGE}")
    assert known(small, "test1") == before and starts(small, "test1")


def test_killed_in_the_middle_the_same_command_goes_on(small: Lab) -> None:
    make(small, "test1", 200 * MB)
    before = known(small, "test1")
    small.ssh("test1", f"sudo rm -rf {BACKUPS}")
    request = json.dumps({"image": m.IMAGE})
    # while it writes the payload, and while docker loads it
    kill = """echo '{request}' > /tmp/request
sudo sh -c 'echo $$ >/tmp/pid; exec rignode {verb}' </tmp/request >/dev/null 2>&1 &
for i in $(seq 1000); do sudo sh -c 'ls {begun}' >/dev/null 2>&1 && break; sleep 0.01; done
sudo kill -9 $(cat /tmp/pid); wait; sudo ls {backups}"""
    begun = f"{BACKUPS}/*.partial/payload.tar.zst"
    words = {"backups": BACKUPS, "request": request, "verb": "image backup", "begun": begun}
    left = small.ssh("test1", "bash -s", stdin=kill.format(**words)).split()
    assert left and all(name.endswith(".partial") for name in left), left
    made = node(small, "test1", "image backup", image=m.IMAGE)
    assert made["ok"] and made["stored"], made
    assert node(small, "test1", "tree verify", backup=made["backup"])["ok"]
    assert small.ssh("test1", f"sudo ls {BACKUPS}").split() == [made["backup"]]

    remove(small, "test1")
    words |= {"request": json.dumps({"backup": made["backup"]}), "verb": "image restore",
              "begun": "-d /var/lib/docker/tmp/docker-import-*"}  # fmt: skip
    small.ssh("test1", "bash -s", stdin=kill.format(**words))
    assert known(small, "test1") is None and not m.open_changes(small)
    back = node(small, "test1", "image restore", backup=made["backup"])
    assert back["ok"] and known(small, "test1") == before, back


def test_a_file_that_was_edited_in_dockers_store_is_not_kept(small: Lab) -> None:
    make(small, "test1")
    small.ssh("test1", f"sudo rm -rf {BACKUPS}")
    folder = "sudo docker image inspect " + m.IMAGE + " | jq -r '.[0].GraphDriver.Data.LowerDir'"
    edit = f"f=$({folder})/blob; sudo dd if=/dev/zero of=$f bs=1k count=1 conv=notrunc status=none"
    small.ssh("test1", edit)
    said = node(small, "test1", "image backup", image=m.IMAGE)
    assert said["code"] == "image_store" and "as its digests say" in said["error"], said
    assert small.ssh("test1", f"sudo ls {BACKUPS}") == ""
