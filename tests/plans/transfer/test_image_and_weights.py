"""image and weights on stand-in hosts: who is asked what, in which order, and what is refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from operations.transfer import docker_archive
from schema.desired.plan import Plan
from schema.inputs.load import plan
from schema.observed.network import Network
from tests.plans.support.rigs import broken, change_open, docker_silent, image_missing, locked
from tests.plans.support.scenario import HEAD, ROOT, WORKER, Runs, Scenario, Snapshots, host
from tests.unit.builders import engine_parts
from tests.unit.builders.host_parts import change
from tests.unit.builders.snapshots import healthy, put
from tests.unit.operations.transfer.test_docker_archive import CONFIG, archive, parts

CUT_OFF = "20260530T065800Z-weights-1a2b"
IMAGE_CUT_OFF = "20260530T065800Z-image-3c4d"
THIRD = "@fake/lab3"
IMAGE, WEIGHTS = "deploys/image.py", "deploys/weights.py"
LACKING = "docker.images"
weights_missing = broken(
    healthy, (WORKER, "weights.0.exists", False), (WORKER, "weights.0.files", ())
)
no_fabric = broken(image_missing, (WORKER, "network.peers.0.route_device", "eth0"))
other_store = broken(image_missing, (WORKER, "docker.storage_driver", "overlayfs"))
nobody = broken(image_missing, (HEAD, LACKING, ()))


MADE = tempfile.TemporaryDirectory()
ARCHIVE = archive(Path(MADE.name) / "small.tar", parts(c_json=CONFIG.replace(b"amd64", b"arm64")))

RECIPE = (ROOT / "catalog" / "recipes" / "tiny.yaml").read_text()
Path(MADE.name, "digest.yaml").write_text(
    RECIPE.replace("rigbook/vllm-cpu:0.32.0", f"rigbook/vllm-cpu@sha256:{'a' * 64}")
)
Path(MADE.name, "three.yaml").write_text(RECIPE.replace("nnodes: 2", "nnodes: 3"))
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


def as_archive(*names: str, by_id: bool = True) -> Callable[[Plan], Snapshots]:
    """The rig whose named nodes have what ARCHIVE holds under the tag, the others another build.

    Not by id: as on a containerd store, where the id is another one.
    """
    held = docker_archive.read(ARCHIVE)
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
    seen = dict(image_missing(plan))
    network = seen[WORKER].network
    assert isinstance(network, Network)
    rows = tuple(r.model_copy(update={"state": "filtered"}) for r in network.reach)
    seen[WORKER] = put(seen[WORKER], "network.reach", rows)
    return seen


def two_builds(plan: Plan) -> Snapshots:
    """One tag, two builds."""
    other = {"digests": (), "layers": ("sha256:" + "9" * 64,), "id": "sha256:" + "8" * 64}
    image = engine_parts.image(plan).model_copy(update=other)
    seen = dict(healthy(plan))
    seen[WORKER] = put(seen[WORKER], "docker.images.0", image)
    return seen


SCENARIOS = {
    "same": Scenario((IMAGE, "-y"), healthy),
    "dry": Scenario((IMAGE, "--dry"), image_missing),
    "move": Scenario((IMAGE, "-y"), image_missing),
    "two takers": Scenario((IMAGE, "-y"), image_on_one_of_three, hosts=three),
    "two takers, one fails": Scenario(
        (IMAGE, "-y"),
        image_on_one_of_three,
        hosts=three,
        faults={
            f"{THIRD}:image receive": {"error": "no room", "code": "no_room"},
            # not before the other one has begun: then it would not be asked at all
            f"{THIRD}:slow": "image receive",
        },
    ),
    "two builds": Scenario((IMAGE, "-y"), two_builds),
    "two builds, said": Scenario((IMAGE, "-y", "--data", f"from={HEAD}"), two_builds),
    "no fabric": Scenario((IMAGE, "-y"), no_fabric),
    "no fabric, waived": Scenario(
        (IMAGE, "-y", "--data", "waive=fabric-route", "--data", "reason=the cable"), no_fabric
    ),
    "firewall": Scenario((IMAGE, "-y"), firewall),
    "silent": Scenario((IMAGE, "-y"), docker_silent),
    "open": Scenario((IMAGE, "-y"), change_open),
    "locked": Scenario((IMAGE, "-y"), locked),
    "other store": Scenario((IMAGE, "--dry"), other_store),
    "other store, layers": Scenario((IMAGE, "-y", "--data", "method=layers"), other_store),
    "nobody": Scenario((IMAGE, "--dry"), nobody),
    "archive absent": Scenario((IMAGE, "-y", "--data", "archive=/nosuch/file.tar"), nobody),
    "archive is there": Scenario(
        (IMAGE, "-y", "--data", f"archive={ARCHIVE}"), as_archive(HEAD, WORKER)
    ),
    "archive is there, other store": Scenario(
        (IMAGE, "-y", "--data", f"archive={ARCHIVE}"), as_archive(HEAD, WORKER, by_id=False)
    ),
    "archive is nowhere": Scenario((IMAGE, "--dry", "--data", f"archive={ARCHIVE}"), healthy),
    "archive is on one": Scenario(
        (IMAGE, "-y", "--data", f"archive={ARCHIVE}"), as_archive(WORKER)
    ),
    "archive to a stranger": Scenario(
        (IMAGE, "-y", "--data", f"archive={ARCHIVE}", "--data", "from=lab9"), healthy
    ),
    "archive for a digest": Scenario(
        (
            IMAGE,
            "-y",
            "--data",
            f"archive={ARCHIVE}",
            "--data",
            "recipe=digest",
            "--data",
            f"recipes_dir={MADE.name}",
        ),
        healthy,
    ),
    "fails": Scenario(
        (IMAGE, "-y"),
        image_missing,
        faults={f"{WORKER}:image receive": {"error": "no room", "code": "no_room"}},
    ),
    "lost": Scenario(
        (IMAGE, "-y"),
        image_missing,
        faults={
            f"{WORKER}:lost": "image receive",
            f"{WORKER}:close COMMITTED": {"error": "stand-in: no route", "code": ""},
        },
    ),
    "build, no word": Scenario((IMAGE, "-y", "--data", "build=true"), image_missing),
    "build and archive": Scenario(
        (IMAGE, "-y", "--data", "build=true", "--data", "archive=/x.tar"), image_missing
    ),
    "bad method": Scenario((IMAGE, "-y", "--data", "method=$(id)")),
    "bad from": Scenario((IMAGE, "-y", "--data", "from=-x;id")),
    "bad port": Scenario((IMAGE, "-y", "--data", "port=80")),
    "bad archive": Scenario((IMAGE, "-y", "--data", "archive=../x")),
    "taken up": Scenario((IMAGE, "-y"), broken(image_missing, image_cut_off(WORKER))),
    "taken up, all tagged": Scenario((IMAGE, "-y"), broken(healthy, image_cut_off(WORKER))),
    "taken up, closed where it arrived": Scenario(
        (IMAGE, "-y"),
        broken(image_missing, image_cut_off(HEAD, "COMMITTED"), image_cut_off(WORKER)),
    ),
    "weights same": Scenario((WEIGHTS, "-y"), healthy),
    "weights": Scenario((WEIGHTS, "-y"), weights_missing),
    "weights dry": Scenario((WEIGHTS, "--dry"), weights_missing),
    "weights verify": Scenario((WEIGHTS, "-y", "--data", "verify=true"), healthy),
    "weights verify one": Scenario((WEIGHTS, "-y", "--data", "verify=some-id"), healthy),
    "weights taken up": Scenario(
        (WEIGHTS, "-y"),
        broken(
            weights_missing,
            (WORKER, "journal.changes", (change("OPEN", id=CUT_OFF, deploy="weights"),)),
        ),
    ),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


@pytest.mark.parametrize(
    "name", ["same", "weights same", "archive is there", "archive is there, other store"]
)
def test_nothing_to_do_costs_one_look_a_host(ran: Runs, name: str) -> None:
    """One remote command a host, nothing changes, exit status 0."""
    same = ran[name]
    assert same.status == 0, same.output
    assert sorted(c.host for c in same.commands) == [HEAD, WORKER] and same.changing == ()


@pytest.mark.parametrize("name", ["dry", "weights dry", "nobody", "other store"])
def test_dry_shows_the_way_and_sends_nothing(ran: Runs, name: str) -> None:
    """A dry run is one look."""
    dry = ran[name]
    assert dry.status == 0 and dry.changing == (), dry.output


def test_dry_says_who_gives_and_who_gets(ran: Runs) -> None:
    """With the way, and that the tag comes last."""
    assert f"[{HEAD}] give rigbook/vllm-cpu:0.32.0 to {WORKER}" in ran["dry"].stderr
    assert "out of bond0; the tag last" in ran["dry"].stderr
    assert "[@fake/lab1] docker pull rigbook/vllm-cpu:0.32.0" in ran["nobody"].stderr
    assert "method=ssh" in ran["other store"].stderr and "overlayfs" in ran["other store"].stderr


def test_a_firewall_is_refused_before_anything_is_sent(ran: Runs) -> None:
    """With the place, and what lets it in."""
    refused = ran["firewall"]
    assert refused.status == 1 and refused.changing == ()
    assert "transfer-way" in refused.output and "nft list ruleset" in refused.output


def test_each_node_is_asked_to_try_the_givers_port(ran: Runs) -> None:
    """In the one look, out of the fabric's device."""
    asked = {c.host: c.request["reach"] for c in ran["same"].commands}
    for name in (HEAD, WORKER):
        (row,) = asked[name]
        assert (row["port"], row["device"]) == (29680, "bond0")
    assert asked[HEAD][0]["address"] != asked[WORKER][0]["address"]


def test_a_move_is_offered_received_and_blessed(ran: Runs) -> None:
    """Both at the same time with one key, then a fresh look, then COMMITTED where it arrived."""
    move = ran["move"]
    assert move.status == 0, move.output
    assert sorted(move.steps[:2]) == ["lab1 image offer", "lab2 image receive"]
    assert move.steps[2:] == ["lab2 close COMMITTED"]
    offer, receive = sorted(move.changing[:2], key=lambda c: c.verb)
    assert offer.request["key"] == receive.request["key"]
    assert offer.request["listen"] == receive.request["from"]
    assert offer.request["listen"]["address"] == "10.0.0.1"
    assert offer.request["listen"]["device"] == "bond0"
    assert (
        offer.request["peers"] == ["10.0.0.2"] and offer.request["want"] == receive.request["want"]
    )


def test_an_archive_of_other_content_goes_to_one_node_and_from_there_on(ran: Runs) -> None:
    """Though every node has the tag: the operator said what is to be under it."""
    said = ran["archive is nowhere"].stderr
    assert ran["archive is nowhere"].status == 0 and "no node has it" in said
    assert f"[{HEAD}] docker load of {ARCHIVE}" in said, said
    assert f"[{HEAD}] give rigbook/vllm-cpu:0.32.0 to {WORKER}" in said


def test_a_node_that_has_the_archives_image_gives_it(ran: Runs) -> None:
    """Nothing is loaded anew, and the head's other image is not taken for the right one."""
    one = ran["archive is on one"]
    assert one.status == 0 and f"{WORKER} has it" in one.stderr, one.output
    assert sorted(one.steps[:2]) == ["lab1 image receive", "lab2 image offer"]


def test_two_takers_are_served_by_one_offer(ran: Runs) -> None:
    """One giver for both, with one key; both are blessed by one proof."""
    two = ran["two takers"]
    assert two.status == 0, two.output
    assert sorted(two.steps[:3]) == ["lab1 image offer", "lab2 image receive", "lab3 image receive"]
    assert sorted(two.steps[3:]) == ["lab2 close COMMITTED", "lab3 close COMMITTED"]
    (offer,) = [c for c in two.changing if c.verb == "image offer"]
    assert offer.request["peers"] == ["10.0.0.2", "10.0.0.3"]
    assert {c.request["key"] for c in two.changing if "key" in c.request} == {offer.request["key"]}


def test_of_two_takers_the_one_that_got_it_keeps_it(ran: Runs) -> None:
    fails = ran["two takers, one fails"]
    assert fails.status != 0 and "no room" in fails.output and "Traceback" not in fails.output
    assert f"complete on {WORKER}; run it again" in fails.output, fails.output
    assert "lab2 close COMMITTED" in fails.steps


def test_the_key_is_in_no_line_and_no_output(ran: Runs) -> None:
    """It goes by stdin, and each run has its own."""
    keys = set()
    for name in ("move", "weights"):
        run = ran[name]
        (offer,) = [c for c in run.changing if c.verb.endswith("offer")]
        key = offer.request["key"]
        keys.add(key)
        assert len(key) == 64 and key not in run.output
        assert all(key not in c.raw for c in run.commands)
    assert len(keys) == 2


def test_two_builds_are_refused_until_somebody_says_which(ran: Runs) -> None:
    """Nothing is overwritten by chance."""
    ran["two builds"].refused("image-differs", f"from={HEAD}")
    said = ran["two builds, said"]
    assert said.status == 0 and "lab2 image receive" in said.steps, said.output


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no fabric", "fabric-route"),
        ("silent", "docker-unreadable"),
        ("open", "change-open"),
        ("locked", "lock-held"),
        ("other store, layers", "method=ssh"),
        ("archive absent", "cannot be read as a docker archive"),
        ("archive to a stranger", "the rig has @fake/lab1, @fake/lab2"),
        ("archive for a digest", "which only a pull sets"),
        ("build, no word", "has no container.build"),
        ("build and archive", "two sources"),
        ("bad method", "method"),
        ("bad from", "from"),
        ("bad port", "port"),
        ("bad archive", "archive"),
    ],
)
def test_refusals_change_nothing(ran: Runs, name: str, part: str) -> None:
    """One clear line, exit status not 0, no command that changes."""
    ran[name].refused(part)


def test_a_waived_fabric_means_the_lan(ran: Runs) -> None:
    """Said in the plan, and no device is demanded."""
    waived = ran["no fabric, waived"]
    assert waived.status == 0, waived.output
    (offer,) = [c for c in waived.changing if c.verb == "image offer"]
    assert offer.request["listen"]["device"] is None
    assert not offer.request["listen"]["address"].startswith("10.0.0.")
    assert "over the LAN" in waived.stderr


def test_a_node_that_fails_is_named_and_nothing_is_blessed(ran: Runs) -> None:
    """What has come is kept; the line says so."""
    fails = ran["fails"]
    assert fails.status != 0 and "no room" in fails.output and "Traceback" not in fails.output
    assert "run it again" in fails.output
    assert "The same content everywhere" not in json.dumps(fails.steps)


@pytest.mark.parametrize("name", ["taken up", "taken up, closed where it arrived"])
def test_an_image_run_that_was_cut_off_is_taken_up(ran: Runs, name: str) -> None:
    """The same change goes on; a rollback would take the tag from the node that has it."""
    again = ran[name]
    assert again.status == 0, again.output
    (receive,) = [c for c in again.changing if c.verb == "image receive"]
    assert receive.request["change"]["id"] == IMAGE_CUT_OFF
    assert again.steps[2:] == ["lab2 close COMMITTED"]


def test_an_image_run_that_only_was_not_closed_is_looked_at_and_closed(ran: Runs) -> None:
    again = ran["taken up, all tagged"]
    assert again.status == 0 and again.steps == ["lab2 close COMMITTED"], again.output
    assert again.changing[0].request["change"] == IMAGE_CUT_OFF


def test_a_node_that_no_longer_answers_is_not_called_untouched(ran: Runs) -> None:
    """The connection went while it may have set its tag."""
    lost = ran["lost"]
    assert lost.status != 0 and "Traceback" not in lost.output
    assert f"{WORKER} did not answer: whether its tag was set is not known" in lost.output
    assert "no node's tag was touched" not in lost.output
    id_ = next(c for c in lost.changing if c.verb == "image receive").request["change"]["id"]
    assert f"deploys/rollback.py --data change={id_}" in lost.output, lost.output


def test_weights_move_and_are_blessed(ran: Runs) -> None:
    """Offered by the node whose weights are whole, owned by the login user."""
    weights = ran["weights"]
    assert weights.status == 0, weights.output
    assert sorted(weights.steps[:2]) == ["lab1 weights offer", "lab2 weights receive"]
    assert weights.steps[2:] == ["lab2 close COMMITTED"]
    (receive,) = [c for c in weights.changing if c.verb == "weights receive"]
    assert receive.request["owner"] == "milo" and receive.request["prune"] is False


def test_a_weights_run_that_was_cut_off_is_taken_up(ran: Runs) -> None:
    """The same change goes on; no rollback is needed first."""
    again = ran["weights taken up"]
    assert again.status == 0, again.output
    (receive,) = [c for c in again.changing if c.verb == "weights receive"]
    assert receive.request["change"]["id"] == CUT_OFF


def test_verify_hashes_on_every_node(ran: Runs) -> None:
    """No transfer where nothing lacks."""
    verify = ran["weights verify"]
    assert verify.status == 0, verify.output
    assert sorted(verify.steps) == ["lab1 weights hash", "lab2 weights hash"]
    assert "with the same sha256 on 2 nodes" in verify.stderr


def test_weights_do_not_know_backups_verify(ran: Runs) -> None:
    """Ignored, a name would leave the operator with the belief that something was verified."""
    one = ran["weights verify one"]
    assert one.status != 0 and one.changing == (), one.output
    assert "--data: verify: is the text 'some-id'; allowed: true or false" in one.stderr
