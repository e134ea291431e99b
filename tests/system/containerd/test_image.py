"""image between docker's own store and the containerd store, each way, with real dockers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab.support import moving as m
from tests.system.rehearsal import ROOT, Done, Lab

MB = 1_000_000
MOVE = "Move the image"
PAIR, SWAPPED, BOTH = (
    f"tests/system/containerd/{name}/lab.py" for name in ("pair", "swapped", "both")
)
# who gives, who takes, by which rig
WAYS = (("test1", "test2", PAIR), ("test2", "test1", PAIR), ("test2", "test3", BOTH))
# what of a docker pull is on the taker's disk before docker has all of it
ARRIVING = {
    "test1": "/var/lib/docker/tmp",
    "test2": "/var/lib/containerd/io.containerd.content.v1.content/ingest",
    "test3": "/var/lib/containerd/io.containerd.content.v1.content/ingest",
}
NOTHING = ("-", "-", "7")


@pytest.fixture
def bare(lab: Lab) -> Iterator[Lab]:
    """Neither host has the image, nor a change that is open."""
    m.clear(lab)
    yield lab
    m.clear(lab)


def make(lab: Lab, host: str, size: int = 8 * MB) -> str:
    """An image of two layers on a host; its id there."""
    m.make_image(lab, host, size)
    m.add_layer(lab, host, MB)
    return m.image_id(lab, host)


def seen(lab: Lab, host: str) -> dict[str, Any]:
    """The docker section of a host's snapshot."""
    request = json.dumps({"images": [m.IMAGE]})
    return dict(json.loads(lab.ssh(host, "sudo rignode snapshot", stdin=request))["docker"])


def pyinfra(lab: Lab, deploy: str, *arguments: str, rig: str = PAIR) -> Done:
    """A runbook for two of the hosts."""
    return lab.pyinfra(deploy, *arguments, inventory=rig)


def names(lab: Lab, host: str) -> str:
    """All names of images on a host, also those by digest."""
    return lab.ssh(host, "sudo docker image inspect -f '{{.RepoTags}} {{.RepoDigests}}' "
                   "$(sudo docker images -q) 2>/dev/null || true")  # fmt: skip


def config_of(lab: Lab, host: str) -> str:
    """The digest of the image's config, as docker save of it says."""
    said = lab.ssh(host, f"sudo docker save {m.IMAGE} | tar -xO manifest.json")
    return Path(json.loads(said)[0]["Config"]).name.removesuffix(".json")


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar with these files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def digest(raw: bytes) -> str:
    """The digest of bytes, as images name it."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def write_archive(path: Path, *layers: bytes, diff_ids: list[str]) -> None:
    """An archive of docker save's old form."""
    rootfs = {"type": "layers", "diff_ids": diff_ids}
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode()
    files = {f"{n}/layer.tar": layer for n, layer in enumerate(layers)}
    name = f"{digest(config)[7:]}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": list(files)}]).encode()
    path.write_bytes(tar_of({name: config, "manifest.json": manifest, **files}))


@pytest.mark.parametrize(("giver", "taker", "rig"), WAYS)
def test_it_moves_and_a_second_run_changes_nothing(
    bare: Lab, giver: str, taker: str, rig: str
) -> None:
    make(bare, giver)
    done = pyinfra(bare, "image", *m.RECIPE, rig=rig)
    assert done.rc == 0 and done.counts(MOVE)[1] == "2" and "COMMITTED" in done.text, done.text
    assert "what it lacks, out of bond0" in done.text
    assert bare.changes(taker)[0]["status"] == "COMMITTED"
    same_store = m.image_id(bare, giver) == m.image_id(bare, taker)
    assert same_store == (rig == BOTH), ".Id is comparable after all"
    assert config_of(bare, giver) == config_of(bare, taker)
    # the name that docker pulled it under is gone
    assert "rigbook-pull" not in names(bare, taker)
    again = pyinfra(bare, "image", *m.RECIPE, rig=rig)
    assert again.rc == 0 and again.counts("Grand total")[1:] == NOTHING, again.text
    assert "is the same on all 2 nodes" in again.text


def test_the_snapshot_names_the_store_and_one_config_for_both(bare: Lab) -> None:
    made = make(bare, "test1")
    assert pyinfra(bare, "image", *m.RECIPE).rc == 0
    one, two = seen(bare, "test1"), seen(bare, "test2")
    assert (one["storage_driver"], one["containerd"]) == ("overlay2", None)
    assert (two["storage_driver"], two["containerd"]) == ("overlayfs", "/var/lib/containerd")
    (here,), (there,) = one["images"], two["images"]
    assert here["layers"] == there["layers"] and len(here["layers"]) == 2
    assert here["config_sha256"] == there["config_sha256"]
    assert here["id"] == made == f"sha256:{config_of(bare, 'test2')}" != there["id"]
    # the containerd store says a digest of an image that no registry has ever seen
    assert here["digests"] == [] and there["digests"] == [f"rigbook/small@{there['id']}"]


@pytest.mark.parametrize(("giver", "taker", "rig"), WAYS)
def test_another_image_under_the_tag_is_kept_and_undo_brings_it_back(
    bare: Lab, giver: str, taker: str, rig: str
) -> None:
    make(bare, giver)
    former = make(bare, taker, MB)
    refused = pyinfra(bare, "image", *m.RECIPE, rig=rig)
    assert refused.rc == 1 and "image-differs" in refused.text
    done = pyinfra(bare, "image", *m.RECIPE, "--data", f"from={giver}", rig=rig)
    assert done.rc == 0 and config_of(bare, taker) == config_of(bare, giver), done.text
    assert m.image_id(bare, taker, f"rigbook-kept:{former[7:19]}") == former
    change = bare.changes(taker)[0]["id"]
    undone = pyinfra(bare, "rollback", *m.RECIPE, "--data", f"change={change}", rig=rig)
    assert undone.rc == 0 and m.image_id(bare, taker) == former, undone.text
    assert m.image_id(bare, taker, f"rigbook-kept:{former[7:19]}") == ""


@pytest.mark.parametrize(("giver", "taker", "rig"), WAYS)
def test_undo_takes_a_tag_away_where_there_was_none(
    bare: Lab, giver: str, taker: str, rig: str
) -> None:
    make(bare, giver)
    assert pyinfra(bare, "image", *m.RECIPE, rig=rig).rc == 0
    change = bare.changes(taker)[0]["id"]
    undone = pyinfra(bare, "rollback", *m.RECIPE, "--data", f"change={change}", rig=rig)
    assert undone.rc == 0 and m.image_id(bare, taker) == "", undone.text
    assert m.image_id(bare, giver) != ""


def arrived(lab: Lab, taker: str) -> int:
    """The bytes of a docker load that the taker's docker has on its disk, not yet as an image."""
    said = lab.ssh(taker, f"sudo find {ARRIVING[taker]} -type f -printf '%s\\n' 2>/dev/null; true")
    return sum(int(line) for line in said.split())


@pytest.mark.parametrize(("giver", "taker", "rig"), WAYS)
def test_a_killed_operator_leaves_the_old_image(
    bare: Lab, giver: str, taker: str, rig: str
) -> None:
    """What docker has of a blob by then need not come again."""
    make(bare, giver, 40 * MB)
    former = make(bare, taker, MB)
    way = (*m.RECIPE, "--data", f"from={giver}")
    before = arrived(bare, taker)
    with m.slow_link(bare, giver, "bond0", 16):
        started = m.start("image", *way, inventory=rig)
        m.wait_for(lambda: arrived(bare, taker) > before + 8 * MB, 120)
        m.kill(started)
        m.wait_for(lambda: not m.at_work(bare, giver) and not m.at_work(bare, taker), 30)
    assert m.image_id(bare, taker) == former and not m.open_changes(bare)
    done = pyinfra(bare, "image", *way, rig=rig)
    assert done.rc == 0 and config_of(bare, taker) == config_of(bare, giver), done.text
    assert "rigbook-pull" not in names(bare, taker)
    # docker's own store throws away what a pull that was given up had
    assert m.megabytes(done.text, "on the wire") < (45 if taker == "test1" else 36), done.text


def test_a_docker_that_is_killed_meanwhile_goes_on(bare: Lab) -> None:
    """systemd starts it again, and the pull is asked for again by itself."""
    make(bare, "test2", 40 * MB)
    before = arrived(bare, "test3")
    with m.slow_link(bare, "test2", "bond0", 40):
        started = m.start("image", *m.RECIPE, inventory=BOTH)
        m.wait_for(lambda: arrived(bare, "test3") > before + 4 * MB)
        bare.ssh("test3", "sudo systemctl kill -s KILL docker")
        out, _ = started.communicate(timeout=180)
    assert started.returncode == 0 and "COMMITTED" in out, out
    assert m.image_id(bare, "test3") == m.image_id(bare, "test2")


def passed(lab: Lab, host: str, device: str) -> int:
    """The bytes that went through a link of a host, both ways."""
    folder = f"/sys/class/net/{device}/statistics"
    return sum(map(int, lab.ssh(host, f"cat {folder}/rx_bytes {folder}/tx_bytes").split()))


@pytest.mark.parametrize(("giver", "taker", "rig"), WAYS)
def test_nothing_of_it_goes_through_the_operators_machine(
    bare: Lab, giver: str, taker: str, rig: str
) -> None:
    """host0 is the link to the operator, bond0 the fabric."""
    make(bare, giver, 40 * MB)
    links = [(host, device) for host in (giver, taker) for device in ("host0", "bond0")]
    before = [passed(bare, *link) for link in links]
    assert pyinfra(bare, "image", *m.RECIPE, rig=rig).rc == 0
    now = [passed(bare, *link) - was for link, was in zip(links, before, strict=True)]
    assert now[0] < 3 * MB and now[2] < 3 * MB, (links, now)
    assert 41 * MB < now[1] < 60 * MB and 41 * MB < now[3] < 60 * MB, (links, now)


def pinned(folder: Path, digest: str) -> tuple[str, ...]:
    """A recipe whose image is named by this digest, as it is asked for."""
    text = (ROOT / "tests/system/lab/recipes/small-image.yaml").read_text()
    folder.mkdir(exist_ok=True)
    (folder / "pinned.yaml").write_text(text.replace(m.IMAGE, f"rigbook/small@{digest}"))
    return ("--data", "recipe=pinned", "--data", f"recipes_dir={folder}")


def test_a_name_by_digest_goes_from_containerd_to_containerd(bare: Lab, tmp_path: Path) -> None:
    """No registry has it: where it is asked for by docker run, docker knows it."""
    name = f"rigbook/small@{make(bare, 'test2')}"
    recipe = pinned(tmp_path, name.partition("@")[2])
    done = pyinfra(bare, "image", *recipe, rig=BOTH)
    assert done.rc == 0 and m.megabytes(done.text, "on the wire") > 8, done.text
    assert m.image_id(bare, "test3", name) == m.image_id(bare, "test2", name) == name[14:]
    again = pyinfra(bare, "image", *recipe, rig=BOTH)
    assert again.rc == 0 and again.counts("Grand total")[1:] == NOTHING, again.text
    change = bare.changes("test3")[0]["id"]
    undone = pyinfra(bare, "rollback", *recipe, "--data", f"change={change}", rig=BOTH)
    assert undone.rc == 0 and m.image_id(bare, "test3", name) == "", undone.text


def test_a_name_by_digest_is_not_given_to_dockers_own_store(bare: Lab, tmp_path: Path) -> None:
    """There each node pulls: without the registry nothing changes, and docker's words say why."""
    recipe = pinned(tmp_path, make(bare, "test2"))
    done = pyinfra(bare, "image", *recipe, rig=PAIR)
    assert done.rc == 1 and "test1: docker pull rigbook/small@sha256:" in done.text, done.text
    assert m.image_id(bare, "test1") == ""


@pytest.mark.parametrize(("giver", "rig"), [("test2", BOTH), ("test1", PAIR)])
def test_a_copy_kept_here_brings_back_what_no_registry_has(
    bare: Lab, tmp_path: Path, giver: str, rig: str
) -> None:
    """By digest from one containerd store to others, by its tag from docker's own store."""
    made = make(bare, giver)
    save = ("--data", f"save={tmp_path / 'copies'}")
    done = pyinfra(bare, "image", *m.RECIPE, *save, rig=rig)
    (copy,) = (tmp_path / "copies").iterdir()
    assert done.rc == 0 and f"{copy}: " in done.text and made in done.text, done.text
    again = pyinfra(bare, "image", *m.RECIPE, *save, rig=rig)
    assert again.rc == 0 and f"{copy} is whole" in again.text, again.text
    assert again.counts("Grand total")[1:3] == ("-", "-"), again.text
    m.clear(bare)
    recipe = pinned(tmp_path, made) if rig == BOTH else m.RECIPE
    name = f"rigbook/small@{made}" if rig == BOTH else m.IMAGE
    back = pyinfra(bare, "image", *recipe, "--data", f"archive={copy}", rig=rig)
    assert back.rc == 0 and "COMMITTED" in back.text, back.text
    assert m.image_id(bare, giver, name) == made
    assert m.image_id(bare, "test3" if rig == BOTH else "test2", name)


def test_an_archive_goes_into_the_containerd_store_and_on_from_there(
    bare: Lab, tmp_path: Path
) -> None:
    """Its layer is compressed; the room that it takes is told as unpacked."""
    layer = tar_of({"blob": bytes(20 * MB)})
    archive = tmp_path / "zeros.tar"
    write_archive(archive, gzip.compress(layer), diff_ids=[digest(layer)])
    done = pyinfra(bare, "image", *m.RECIPE, "--data", f"archive={archive}", rig=SWAPPED)
    assert done.rc == 0 and "[test2] docker load of" in done.text, done.text
    (here,), (there,) = seen(bare, "test1")["images"], seen(bare, "test2")["images"]
    assert here["layers"] == there["layers"] == [digest(layer)]
    assert here["size"] >= 20 * MB and there["size"] >= 20 * MB


def test_files_inside_are_read_alike_in_both_stores(bare: Lab, tmp_path: Path) -> None:
    """Also one that an upper layer changes, and one that it deletes; no container is made."""
    lower = tar_of({"opt/kept": b"old old", "opt/changed": b"old", "opt/gone": b"old"})
    upper = tar_of({"opt/changed": b"new", "opt/.wh.gone": b""})
    archive = tmp_path / "two.tar"
    write_archive(archive, lower, upper, diff_ids=[digest(lower), digest(upper)])
    assert pyinfra(bare, "image", *m.RECIPE, "--data", f"archive={archive}").rc == 0
    found = []
    for host in ("test1", "test2"):
        probe = {"image": m.IMAGE, "path": "/opt/*", "contains": "old"}
        said = bare.ssh(host, "sudo rignode snapshot", stdin=json.dumps({"image_files": [probe]}))
        (answer,) = json.loads(said)["image_files"]
        found.append({row["path"]: row["count"] for row in answer["matches"]})
        assert bare.ssh(host, "sudo docker ps -aq") == ""
    assert found == [{"/opt/kept": 2, "/opt/changed": 0}] * 2
    told = pyinfra(bare, "provenance", *m.RECIPE)
    assert told.rc == 0 and f"[test2] image {m.IMAGE}" in told.text, told.text


def test_files_of_a_container_that_never_ran_are_found(bare: Lab) -> None:
    """A unit that starts a container is checked by what lies in it (`unit.py`)."""
    make(bare, "test1")
    assert pyinfra(bare, "image", *m.RECIPE).rc == 0
    look = (
        "import sys; sys.path.insert(0, '/usr/local/bin/rignode'); from node.docker "
        "import store; print(*store.container_tree('rigbook-look').layers)"
    )
    bare.ssh("test2", f"sudo docker create --name rigbook-look {m.IMAGE} none")
    try:
        folders = bare.ssh("test2", f'sudo python3 -B -c "{look}"').split()
        names = bare.ssh("test2", f"sudo find {' '.join(folders)} -printf '%P\\n'").split("\n")
    finally:
        bare.ssh("test2", "sudo docker rm rigbook-look")
    # docker's own two (hosts, hostname and the like; what it writes) upon the image's two
    assert len(folders) == 4 and "dir/blob" in names
    assert any(name.startswith("layer-") for name in names), names


def test_a_damaged_archive_gets_no_name_in_the_containerd_store(bare: Lab, tmp_path: Path) -> None:
    layer = tar_of({"blob": os.urandom(2 * MB)})
    archive = tmp_path / "damaged.tar"
    damaged = layer[:MB] + b"XXXX" + layer[MB + 4 :]
    write_archive(archive, damaged, diff_ids=[digest(layer)])
    done = pyinfra(bare, "image", *m.RECIPE, "--data", f"archive={archive}", rig=SWAPPED)
    assert done.rc == 1 and "wrong diff id" in done.text and "Traceback" not in done.text
    assert m.image_id(bare, "test2") == "" == m.image_id(bare, "test1")


BUILD = """set -e
cd "$(mktemp -d)" && head -c 1000000 /dev/urandom > blob && echo words > words
printf 'FROM scratch\\nCOPY blob /\\nCOPY words /\\n' > Dockerfile
sudo docker build --quiet --tag {image} . </dev/null && rm -r "$PWD"
"""


def test_what_buildkit_builds_is_the_same_on_overlay2(bare: Lab) -> None:
    """An index with an attestation and compressed layers; overlay2 gets the one image in it."""
    bare.ssh("test2", "bash -s", stdin=BUILD.format(image=m.IMAGE))
    done = pyinfra(bare, "image", *m.RECIPE)
    assert done.rc == 0, done.text
    assert config_of(bare, "test1") == config_of(bare, "test2")
    again = pyinfra(bare, "image", *m.RECIPE)
    assert again.rc == 0 and again.counts("Grand total")[1:] == NOTHING, again.text
