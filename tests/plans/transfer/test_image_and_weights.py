"""image and weights on stand-in hosts: who is asked what, in which order, and what is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from operations import image as operations_image
from schema.load import plan
from schema.plan import Plan
from schema.snapshot import Network, Unreadable
from tests.plans.support import scenario
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Ends,
    Ran,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    broken,
    data,
    done,
    each_row,
    failed,
    host,
    image_missing,
    quiet,
    refused,
)
from tests.unit.builders import engine_parts
from tests.unit.builders.host_parts import change
from tests.unit.builders.rigs import ROOT, healthy, put
from tests.unit.operations.transfer.test_transfer import CONFIG, archive, parts

CUT_OFF = "20260530T065800Z-weights-1a2b"
IMAGE_CUT_OFF = "20260530T065800Z-image-3c4d"
THIRD = "@fake/lab3"
IMAGE, WEIGHTS = "deploys/image.py", "deploys/weights.py"
LACKING = "docker.images"
weights_missing = broken(
    healthy, (WORKER, "weights.0.exists", False), (WORKER, "weights.0.files", ())
)
weights_off_fabric = broken(weights_missing, (WORKER, "network.peers.0.route_device", "eth0"))


def weights_hashed(plan: Plan) -> Snapshots:
    """Every file has been read on both nodes."""
    seen = dict(healthy(plan))
    for name, snapshot in seen.items():
        assert not isinstance(snapshot.weights, Unreadable)
        files = [f.model_copy(update={"sha256": "c" * 64}) for f in snapshot.weights[0].files]
        seen[name] = put(snapshot, "weights.0.files", tuple(files))
    return seen


def weights_others(plan: Plan) -> Snapshots:
    """The worker has another config, a shard of the same size with another end, and one more."""
    seen = dict(healthy(plan))
    weights = seen[WORKER].weights
    assert not isinstance(weights, Unreadable)
    config, shard, *_ = weights[0].files
    probe = {WORKER: "b" * 64, HEAD: "a" * 64}
    for name in probe:
        there = shard.model_copy(update={"probe": probe[name]})
        more = (config.model_copy(update={"size": 1999}), there,
                config.model_copy(update={"name": "old.bin", "size": 5_000_000}))  # fmt: skip
        seen[name] = put(seen[name], "weights.0.files", more if name == WORKER else (config, there))
    return seen


REVISION = "0f1e2d3c4b5a69788796a5b4c3d2e1f001122334"
MODEL = "/srv/hub/models--org--tiny"
hub_cache = broken(
    weights_missing,
    *(
        (name, path, MODEL)
        for name in (HEAD, WORKER)
        for path in ("weights.0.path", "disks.0.path")
    ),
    (HEAD, "weights.0.folder", f"{MODEL}/snapshots/{REVISION}"),
    (HEAD, "weights.0.linked", 2),
)
no_fabric = broken(image_missing, (WORKER, "network.peers.0.route_device", "eth0"))
other_store = broken(image_missing, (WORKER, "docker.storage_driver", "vfs"))
containerd = broken(image_missing, (WORKER, "docker.storage_driver", "overlayfs"),
                    (WORKER, "docker.containerd", "/var/lib/containerd"),
                    (WORKER, "disks.0.path", "/var/lib/containerd"))  # fmt: skip
nobody = broken(image_missing, (HEAD, LACKING, ()))


MADE = tempfile.TemporaryDirectory()
ARCHIVE = archive(Path(MADE.name) / "small.tar", parts(c_json=CONFIG.replace(b"amd64", b"arm64")))

RECIPE = (ROOT / "catalog" / "recipes" / "tiny.yaml").read_text()
Path(MADE.name, "digest.yaml").write_text(
    RECIPE.replace("rigbook/vllm-cpu:0.32.0", f"rigbook/vllm-cpu@sha256:{'a' * 64}")
)
Path(MADE.name, "three.yaml").write_text(RECIPE.replace("nnodes: 2", "nnodes: 3"))
Path(MADE.name, "cached.yaml").write_text(
    RECIPE.replace("path: /srv/models/tiny", f"path: {MODEL}").replace(
        "source: /srv/models/tiny", "source: /srv/hub")
)  # fmt: skip
OF_CACHE = ("recipe=cached", f"recipes_dir={MADE.name}")
OF_THREE = {"recipe": "three", "recipes_dir": MADE.name}


def three(address: str) -> list[tuple[str, dict[str, object]]]:
    """A rig of three: one gives, two take at the same time."""
    names = enumerate((HEAD, WORKER, THIRD), start=1)
    return [(name, host(n, address, **OF_THREE, rank=n - 1)) for n, name in names]


def image_on_one_of_three(two: Plan) -> Snapshots:
    """Only the head has the image."""
    seen = dict(healthy(plan(dict(three(str(two.rig.head.lan_address))), None, ROOT)))
    return seen | {n: put(seen[n], LACKING, ()) for n in (WORKER, THIRD)}


def image_cut_off(node: str, status: str = "OPEN") -> tuple[str, str, object]:
    """What makes a node one on which an image run was killed behind its tag."""
    return node, "journal.changes", (change(status, id=IMAGE_CUT_OFF, deploy="image"),)


def as_archive(*names: str, by_id: bool = True) -> Seen:
    """The rig whose named nodes have what ARCHIVE holds under the tag, the others another build.

    Not by id: as on a containerd store, where the id is another one.
    """
    held = operations_image.read_archive(ARCHIVE)
    id_ = held.image_id if by_id else "sha256:" + "7" * 64
    there = {"digests": (), "layers": held.diff_ids, "id": id_,
             "config_sha256": "" if by_id else held.config_sha256}  # fmt: skip

    def seen(plan: Plan) -> Snapshots:
        image = engine_parts.image(plan).model_copy(update=there)
        rig = dict(healthy(plan))
        return rig | {n: put(rig[n], "docker.images.0", image) for n in names}

    return seen


def firewall(plan: Plan) -> Snapshots:
    """The worker lacks the image, and what it sends to the head's port is dropped."""
    seen = image_missing(plan)
    network = seen[WORKER].network
    assert isinstance(network, Network)
    rows = tuple(r.model_copy(update={"state": "filtered"}) for r in network.reach)
    return {**seen, WORKER: put(seen[WORKER], "network.reach", rows)}


def two_builds(plan: Plan) -> Snapshots:
    """One tag, two builds."""
    other = {"digests": (), "layers": ("sha256:" + "9" * 64,), "id": "sha256:" + "8" * 64}
    image, seen = engine_parts.image(plan).model_copy(update=other), healthy(plan)
    return {**seen, WORKER: put(seen[WORKER], "docker.images.0", image)}


def forged_id(plan: Plan) -> Snapshots:
    """The id of the image, which names the copy on this machine, is a path."""
    image = engine_parts.image(plan).model_copy(update={"id": "sha256:/../../../aa"})
    return {name: put(seen, "docker.images.0", image) for name, seen in healthy(plan).items()}


def image(*pairs: str, seen: Seen = image_missing, how: str = "-y", **more: Any) -> Scenario:
    """A run of image."""
    return Scenario((IMAGE, how, *data(*pairs)), seen, **more)


def weights(*pairs: str, seen: Seen = healthy, how: str = "-y") -> Scenario:
    """A run of weights."""
    return Scenario((WEIGHTS, how, *data(*pairs)), seen)


NO_ROOM = {"error": "no room", "code": "no_room"}
LOOKS = ["snapshot", "snapshot"]
MOVED = [{"lab1 image offer", "lab2 image receive"}, "lab2 close COMMITTED"]
HASHED = {"lab1 weights hash", "lab2 weights hash"}
GIVES = f"[{HEAD}] give rigbook/vllm-cpu:0.32.0 to {WORKER}"
TABLE = {
    "same": (image(seen=healthy), quiet(asks=LOOKS)),
    "dry": (image(how="--dry"), quiet(GIVES, "out of bond0; the tag last")),
    "move": (image(), done(steps=MOVED)),
    "two takers": (image(seen=image_on_one_of_three, hosts=three), done(steps=[
        {"lab1 image offer", "lab2 image receive", "lab3 image receive"},
        {"lab2 close COMMITTED", "lab3 close COMMITTED"}])),
    "two takers, one fails": (
        # not before the other one has begun: then it would not be asked at all
        image(seen=image_on_one_of_three, hosts=three, faults={
            f"{THIRD}:image receive": NO_ROOM, f"{THIRD}:slow": "image receive"}),
        Ends(None, says=("no room", f"complete on {WORKER}; run it again"))),
    # nothing is overwritten by chance
    "two builds": (image(seen=two_builds), refused("image-differs", f"from={HEAD}")),
    "two builds, said": (image(f"from={HEAD}", seen=two_builds), done()),
    "no fabric": (image(seen=no_fabric), refused("fabric-route")),
    "no fabric, waived": (
        image("waive=fabric-route", "reason=the cable", seen=no_fabric), done("over the LAN")),
    "firewall": (image(seen=firewall), failed("nft list ruleset", steps=[])),
    "silent": (image(seen=scenario.docker_silent), refused("docker-unreadable")),
    "open": (image(seen=scenario.change_open), refused("change-open")),
    "locked": (image(seen=scenario.locked), refused("lock-held")),
    "other store": (image(seen=other_store), refused(f"{WORKER} has vfs", "docker save")),
    "containerd store": (
        image(seen=containerd), Ends(0, steps=MOVED, says=(GIVES,), never=("docker save",))),
    "nobody": (
        image(seen=nobody, how="--dry"), quiet(f"[{HEAD}] docker pull rigbook/vllm-cpu:0.32.0")),
    "archive absent": (
        image("archive=/nosuch/file.tar", seen=nobody),
        refused("cannot be read as a docker archive")),
    "archive is there": (
        image(f"archive={ARCHIVE}", seen=as_archive(HEAD, WORKER)), quiet(asks=LOOKS)),
    "archive is there, other store": (
        image(f"archive={ARCHIVE}", seen=as_archive(HEAD, WORKER, by_id=False)),
        quiet(asks=LOOKS)),
    "save": (
        image(f"save={MADE.name}/copies", seen=healthy, how="--dry"),
        quiet(f"[{HEAD}] docker save of rigbook/vllm-cpu:0.32.0 to this machine")),
    "save, forged": (
        image(f"save={MADE.name}/forged", seen=forged_id), failed("needs an ssh connection")),
    # though every node has the tag: the operator said what is to be under it
    "archive is nowhere": (
        image(f"archive={ARCHIVE}", seen=healthy, how="--dry"),
        quiet("no node has it", f"[{HEAD}] docker load of {ARCHIVE}", GIVES)),
    # nothing is loaded anew, and the head's other image is not taken for the right one
    "archive is on one": (
        image(f"archive={ARCHIVE}", seen=as_archive(WORKER)),
        done(f"{WORKER} has it",
             steps=[{"lab1 image receive", "lab2 image offer"}, "lab1 close COMMITTED"])),
    "archive to a stranger": (
        image(f"archive={ARCHIVE}", "from=lab9", seen=healthy),
        refused("the rig has @fake/lab1, @fake/lab2")),
    "archive for a digest": (
        image(f"archive={ARCHIVE}", "recipe=digest", f"recipes_dir={MADE.name}", seen=healthy),
        refused("holds an image without its digest, the recipe names")),
    # what has come is kept
    "fails": (
        image(faults={f"{WORKER}:image receive": NO_ROOM}),
        Ends(None, says=("no room", "run it again"))),
    "lost": (
        image(faults={f"{WORKER}:lost": "image receive", f"{WORKER}:close COMMITTED": {
            "error": "stand-in: no route", "code": ""}}),
        Ends(None, says=(f"{WORKER} did not answer: whether its tag was set is not known",),
             never=("no node's tag was touched",))),
    **{pair: (image(pair, seen=healthy), refused(pair.partition("=")[0]))
       for pair in ("from=-x;id", "port=80", "archive=../x")},
    "taken up": (image(seen=broken(image_missing, image_cut_off(WORKER))), done(
        steps=["lab2 claim", *MOVED])),
    "taken up, closed where it arrived": (
        image(seen=broken(
            image_missing, image_cut_off(HEAD, "COMMITTED"), image_cut_off(WORKER))),
        done(steps=["lab2 claim", *MOVED])),
    # it only was not closed
    "taken up, all tagged": (
        image(seen=broken(healthy, image_cut_off(WORKER))), done(
            steps=["lab2 claim", *MOVED[1:]])),
    "weights same": (
        weights(),
        quiet("the same names, sizes and ends (the contents of", "files were not compared: "
              "--data verify=true reads them) everywhere", never=("are the same",), asks=LOOKS)),
    "weights same by content": (
        weights(seen=weights_hashed),
        quiet("files with the same sha256 everywhere", never=("not compared",), asks=LOOKS)),
    "weights": (
        weights(seen=weights_missing),
        done("the weights of tiny: the same names, sizes and ends (the contents of",
             steps=[{"lab1 weights offer", "lab2 weights receive"}, "lab2 close COMMITTED"])),
    "weights dry": (weights(seen=weights_missing, how="--dry"), quiet()),
    # the wrong node's name would have replaced the good files unseen
    # the taker gets plain files, and what its hub's client goes by
    "weights of a hub cache": (
        # a user of this machine as well, whose files they become
        Scenario((WEIGHTS, "-y", *data(*OF_CACHE)), hub_cache, data={"ssh_user": "root"}),
        done(f"write {MODEL}/refs/main", steps=[
            {"lab1 weights offer", "lab2 weights receive", "lab2 apply directory+file"},
            "lab2 close COMMITTED"])),
    "weights replaced, dry": (
        weights(f"from={HEAD}", "prune=true", seen=weights_others, how="--dry"),
        quiet(f"[{WORKER}] replaces 3 files, 3.23 GB, which are kept for an undo: config.json "
              "(1999 bytes), model-00001-of-00001.safetensors (3.22 GB), old.bin (5.00 MB)")),
    "weights on the LAN": (
        weights("waive=fabric-route", "reason=the cable", seen=weights_off_fabric),
        done("goes over the LAN as plain text")),
    "weights verify": (
        weights("verify=true"), done("with the same sha256 on 2 nodes", steps=[HASHED])),
    # ignored, the name of a backup would leave the belief that something was verified
    "weights verify one": (
        weights("verify=some-id"),
        refused("--data: verify: is the text 'some-id'; allowed: true or false")),
    "weights taken up": (
        weights(seen=broken(weights_missing, (WORKER, "journal.changes", (
            change("OPEN", id=CUT_OFF, deploy="weights"),)))), done()),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def request(run: Ran, verb: str) -> dict[str, Any]:
    """What the one host that had to do it was asked."""
    (sent,) = [c for c in run.changing if c.verb == verb]
    return sent.request


def test_a_firewall_is_refused_before_anything_is_sent(ran: Runs) -> None:
    """With the place, and what lets it in."""
    assert "transfer-way" in ran["firewall"].output and ran["firewall"].changing == ()


def test_each_node_is_asked_to_try_the_givers_port(ran: Runs) -> None:
    """In the one look, out of the fabric's device."""
    asked = {c.host: c.request["reach"] for c in ran["same"].commands}
    for name in (HEAD, WORKER):
        (row,) = asked[name]
        assert (row["port"], row["device"]) == (29680, "bond0")
    assert asked[HEAD][0]["address"] != asked[WORKER][0]["address"]


def test_a_move_is_offered_and_received_with_one_key(ran: Runs) -> None:
    offer, receive = (request(ran["move"], f"image {verb}") for verb in ("offer", "receive"))
    assert offer["key"] == receive["key"] and offer["want"] == receive["want"]
    assert offer["listen"] == receive["from"] and offer["peers"] == ["10.0.0.2"]
    assert (offer["listen"]["address"], offer["listen"]["device"]) == ("10.0.0.1", "bond0")


def test_two_takers_are_served_by_one_offer(ran: Runs) -> None:
    two = ran["two takers"]
    offer = request(two, "image offer")
    assert offer["peers"] == ["10.0.0.2", "10.0.0.3"]
    assert {c.request["key"] for c in two.changing if "key" in c.request} == {offer["key"]}


def test_of_two_takers_the_one_that_got_it_keeps_it(ran: Runs) -> None:
    assert "lab2 close COMMITTED" in ran["two takers, one fails"].steps


def test_the_key_is_in_no_line_and_no_output(ran: Runs) -> None:
    """It goes by stdin, and each run has its own."""
    keys = {name: request(ran[name], f"{what} offer")["key"]
            for name, what in (("move", "image"), ("weights", "weights"))}  # fmt: skip
    for name, key in keys.items():
        assert len(key) == 64 and key not in ran[name].output
        assert all(key not in c.raw for c in ran[name].commands)
    assert len(set(keys.values())) == 2


def test_what_the_operator_says_is_overwritten(ran: Runs) -> None:
    assert "lab2 image receive" in ran["two builds, said"].steps


def test_a_waived_fabric_means_the_lan(ran: Runs) -> None:
    """No device is demanded."""
    listen = request(ran["no fabric, waived"], "image offer")["listen"]
    assert listen["device"] is None and not listen["address"].startswith("10.0.0.")


@pytest.mark.parametrize("name", ["taken up", "taken up, closed where it arrived"])
def test_an_image_run_that_was_cut_off_is_taken_up(ran: Runs, name: str) -> None:
    """The same change goes on; a rollback would take the tag from the node that has it."""
    assert request(ran[name], "image receive")["change"]["id"] == IMAGE_CUT_OFF
    assert ran["taken up, all tagged"].changing[0].request["change"] == IMAGE_CUT_OFF


def test_a_node_that_no_longer_answers_is_not_called_untouched(ran: Runs) -> None:
    """The connection went while it may have set its tag."""
    id_ = request(ran["lost"], "image receive")["change"]["id"]
    assert f"deploys/rollback.py --data change={id_}" in ran["lost"].output


def test_weights_belong_to_the_login_user(ran: Runs) -> None:
    receive = request(ran["weights"], "weights receive")
    assert receive["owner"] == "milo" and receive["prune"] is False


def test_a_hub_cache_is_brought_as_its_snapshot(ran: Runs) -> None:
    run = ran["weights of a hub cache"]
    for verb in ("offer", "receive"):
        assert request(run, f"weights {verb}")["path"] == f"{MODEL}/snapshots/{REVISION}"
    folder, file = request(run, "apply")["steps"]
    assert (folder["path"], file["path"]) == (f"{MODEL}/refs", f"{MODEL}/refs/main")
    assert (file["content"], file["owner"], file["mode"]) == (REVISION, "root", "0644")


def test_a_weights_run_that_was_cut_off_is_taken_up(ran: Runs) -> None:
    """The same change goes on; no rollback is needed first."""
    assert request(ran["weights taken up"], "weights receive")["change"]["id"] == CUT_OFF


def test_a_node_names_no_path_outside_the_folder_of_copies(ran: Runs) -> None:
    assert ran["save, forged"].status == 1
    assert [*Path(MADE.name, "forged").iterdir()] == []
