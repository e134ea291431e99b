"""Gates before an image or weights move: whose is right, who gets it, is there a way and room."""

from __future__ import annotations

from typing import Any

import pytest

from gates.core.check import GIB
from gates.core.violation import Violation
from gates.gate_sets import check
from gates.transfer.image import image_gates, images, source_of, targets_of
from gates.transfer.route import TransferRequest, with_route_probe
from gates.transfer.weights import weights_gates, weights_source
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.unit.builders import engine_parts as e
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

HEAD, WORKER = "spark1", "spark2"
PORT = 29680


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two DGX Spark."""
    return spark_plan()


def rig(plan: Plan, *changes: tuple[str, str, Any]) -> dict[str, NodeSnapshot]:
    """The healthy rig with (node, path, value) replaced."""
    seen = dict(f.healthy(plan))
    for node, path, value in changes:
        seen[node] = f.put(seen[node], path, value)
    return seen


def image_findings(plan: Plan, seen: Any, chosen: str | None = None) -> list[Violation]:
    """What blocks before an image moves."""
    return [
        v
        for v in check(plan, seen, image_gates(TransferRequest(chosen, PORT)))
        if v.severity == "block"
    ]


def weights_findings(plan: Plan, seen: Any, chosen: str | None = None) -> list[Violation]:
    """What blocks before weights move."""
    gates = weights_gates(TransferRequest(weights_source(plan, seen, chosen), PORT))
    return [v for v in check(plan, seen, gates) if v.severity == "block"]


def other_build(plan: Plan) -> Any:
    """Another image under the recipe's name."""
    return e.image(plan).model_copy(update={"digests": (), "layers": ("sha256:" + "9" * 64,)})


def test_equal_images_leave_nothing_to_do(plan: Plan) -> None:
    found = images(plan, rig(plan))
    assert source_of(found, None) == HEAD and targets_of(found, HEAD) == ()
    assert image_findings(plan, rig(plan)) == []


def test_the_node_that_has_it_gives_to_the_one_that_lacks_it(plan: Plan) -> None:
    seen = rig(plan, (HEAD, "docker.images", ()))
    found = images(plan, seen)
    assert source_of(found, None) == WORKER and targets_of(found, WORKER) == (HEAD,)
    assert image_findings(plan, seen) == []


def test_two_builds_need_a_word_which_is_right(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "docker.images.0", other_build(plan)))
    (found,) = image_findings(plan, seen)
    assert found.code == "image-differs" and f"from={HEAD}" in found.remedy
    assert f"from={WORKER}" in found.remedy
    assert image_findings(plan, seen, WORKER) == []
    assert targets_of(images(plan, seen), WORKER) == (HEAD,)


def test_a_giver_without_the_image_is_refused(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "docker.images", ()))
    (found,) = image_findings(plan, seen, WORKER)
    assert (found.code, found.node) == ("image-missing", WORKER) and HEAD in found.remedy
    (found,) = image_findings(plan, seen, "nosuch")
    assert found.code == "image-missing" and found.node is None


def test_another_processor_is_refused(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "docker.images", ()), (WORKER, "identity.arch", "x86_64"))
    (found,) = image_findings(plan, seen)
    assert (found.code, found.node) == ("image-arch", WORKER)


def test_docker_that_cannot_be_read_is_not_no_image(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "docker", Unreadable(unreadable="dockerd: no answer")))
    assert "docker-unreadable" in [v.code for v in image_findings(plan, seen)]


def room_findings(plan: Plan, seen: Any, whole: bool = False) -> list[tuple[str, str | None]]:
    """Severity and node of what is said of the room for an image."""
    found = check(plan, seen, image_gates(TransferRequest(None, PORT, is_whole=whole)))
    return [(v.severity, v.node) for v in found if v.code == "transfer-room"]


def with_free(plan: Plan, free: int, root: str = "/var/lib/docker") -> dict[str, NodeSnapshot]:
    """The worker lacks the image, and both nodes have so much room for docker's things."""
    seen = rig(plan, (WORKER, "docker.images", ()))
    for name, snapshot in seen.items():
        assert not isinstance(snapshot.disks, Unreadable)
        disks = tuple(d for d in snapshot.disks if d.path != "/var/lib/docker")
        there = next(d for d in snapshot.disks if d.path == "/var/lib/docker")
        own = there.model_copy(update={"path": root, "free": free})
        seen[name] = f.put(f.put(snapshot, "docker.root", root), "disks", (*disks, own))
    return seen


@pytest.mark.parametrize("root", ["/var/lib/docker", "/data/docker"])
def test_room_is_asked_of_the_taker_where_docker_keeps_its_things(plan: Plan, root: str) -> None:
    """One that other layers may make enough is told; none at all blocks."""
    assert room_findings(plan, with_free(plan, 400 * GIB, root)) == []
    assert room_findings(plan, with_free(plan, GIB, root)) == [("warn", WORKER)]
    assert room_findings(plan, with_free(plan, GIB // 4, root)) == [("block", WORKER)]


def test_room_of_a_docker_root_that_nobody_looked_at_is_unknown(plan: Plan) -> None:
    seen = f.put(with_free(plan, 400 * GIB)[WORKER], "docker.root", "/elsewhere")
    assert room_findings(plan, {**rig(plan), WORKER: seen}) == [("block", WORKER)]


def test_room_blocks_where_docker_takes_the_whole_image_and_counts_nothing(plan: Plan) -> None:
    seen = with_free(plan, GIB)
    assert room_findings(plan, seen, whole=True) == [("block", WORKER)]
    seen[WORKER] = f.put(seen[WORKER], "docker.storage_driver", "overlayfs")
    assert room_findings(plan, seen) == [("block", WORKER)]


def test_room_is_looked_for_where_the_takers_store_is(plan: Plan) -> None:
    """The containerd store has a folder of its own, which may be on another disk."""
    place = "/var/lib/containerd"
    store = ((WORKER, "docker.storage_driver", "overlayfs"), (WORKER, "docker.containerd", place))
    lacks = ((WORKER, "docker.images", ()), *store)
    (unknown,) = image_findings(plan, rig(plan, *lacks))
    assert (unknown.code, unknown.node) == ("transfer-room", WORKER) and unknown.unknown
    seen = rig(plan, *lacks)
    disk = seen[WORKER].disks[0].model_copy(update={"path": place})  # type: ignore[union-attr]
    roomy = f.put(seen[WORKER], "disks", (*seen[WORKER].disks, disk))  # type: ignore[misc]
    assert image_findings(plan, {**seen, WORKER: roomy}) == []
    full = disk.model_copy(update={"free": GIB})
    short = f.put(seen[WORKER], "disks", (*seen[WORKER].disks, full))  # type: ignore[misc]
    (found,) = image_findings(plan, {**seen, WORKER: short})
    assert found.code == "transfer-room" and f"df -h {place}" in found.remedy


@pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.1"])
def test_a_port_that_is_taken_at_the_giver_is_named(plan: Plan, address: str) -> None:
    ports = (h.port(PORT, address=address, process="nginx", pid=77),)
    seen = rig(plan, (WORKER, "docker.images", ()), (HEAD, "ports", ports))
    (found,) = image_findings(plan, seen)
    assert (found.code, found.node) == ("transfer-port", HEAD)
    assert "nginx" in found.evidence and f"port={PORT + 1}" in found.remedy


def test_the_same_port_elsewhere_is_no_obstacle(plan: Plan) -> None:
    on_lan = (h.port(PORT, address="127.0.0.1"),)
    at_taker = (h.port(PORT),)
    seen = rig(plan, (HEAD, "ports", on_lan), (WORKER, "ports", at_taker))
    assert image_findings(plan, seen) == []


def unanswered(node: str, device: str | None = "bond0") -> tuple[str, str, Any]:
    """A firewall drops what this node sends to the giver's port."""
    network = f.healthy(spark_plan())[node].network
    assert not isinstance(network, Unreadable)
    at = next(n for n, row in enumerate(network.reach) if row.device == device)
    lost = {"state": "filtered", "detail": "no answer in 2.5 s"}
    return node, f"network.reach.{at}", network.reach[at].model_copy(update=lost)


def test_a_firewall_in_between_is_found_before_anything_moves(plan: Plan) -> None:
    lacks = (WORKER, "docker.images", ())
    (found,) = image_findings(plan, rig(plan, lacks, unanswered(WORKER)))
    assert (found.code, found.node) == ("transfer-way", WORKER)
    assert "filtered" in found.evidence and str(PORT) in found.remedy and HEAD in found.remedy
    gone = ((WORKER, "weights.0.exists", False), (WORKER, "weights.0.files", ()))
    (found,) = weights_findings(plan, rig(plan, *gone, unanswered(WORKER)))
    assert (found.code, found.node) == ("transfer-way", WORKER)


def test_a_firewall_where_nothing_goes_is_no_obstacle(plan: Plan) -> None:
    """Nothing lacks; or the giver could not call the taker; or it goes through docker and ssh."""
    assert image_findings(plan, rig(plan, unanswered(WORKER))) == []
    assert weights_findings(plan, rig(plan, unanswered(WORKER))) == []
    lacks = (WORKER, "docker.images", ())
    assert image_findings(plan, rig(plan, lacks, unanswered(HEAD))) == []
    assert image_findings(plan, rig(plan, lacks, unanswered(WORKER, None))) == []
    seen = rig(plan, lacks, unanswered(WORKER))
    codes = {
        v.code for v in check(plan, seen, image_gates(TransferRequest(None, PORT, is_whole=True)))
    }
    assert "transfer-way" not in codes


def test_the_way_over_the_lan_counts_where_the_fabric_is_waived(plan: Plan) -> None:
    lacks = (WORKER, "docker.images", ())
    away = (WORKER, "network.peers.0.route_device", "eth0")
    gates = image_gates(TransferRequest(None, PORT, waive=("fabric-route",)))
    for device, blocks in (("bond0", False), (None, True)):
        seen = rig(plan, lacks, away, unanswered(WORKER, device))
        assert ("transfer-way" in {v.code for v in check(plan, seen, gates)}) == blocks


def test_a_way_that_nobody_tried_is_unknown(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "docker.images", ()), (WORKER, "network.reach", ()))
    (found,) = image_findings(plan, seen)
    assert found.code == "transfer-way" and found.unknown


def test_each_node_tries_the_ways_that_a_transfer_may_take(plan: Plan) -> None:
    fabric, lan = plan.rig.head.fabric_address, plan.rig.head.lan_address
    rows = with_route_probe(plan, 29700, ()).requests[WORKER].reach
    assert [(r.address, r.port, r.device) for r in rows] == [(str(fabric), 29700, "bond0")]
    rows = with_route_probe(plan, PORT, ("fabric-down",)).requests[WORKER].reach
    assert [(r.address, r.device) for r in rows] == [(str(fabric), "bond0"), (str(lan), None)]


def test_the_port_is_looked_at_where_the_transfer_goes(plan: Plan) -> None:
    """On the LAN's address when a finding about the fabric is waived, and only then."""
    lan = str(plan.rig.head.lan_address)
    held = (HEAD, "ports", (h.port(PORT, address=lan, process="nginx"),))
    lacks = (WORKER, "docker.images", ())
    away = (WORKER, "network.peers.0.route_device", "eth0")
    waive = ("fabric-route",)

    def said(*changes: tuple[str, str, Any]) -> set[str]:
        seen = rig(plan, lacks, *changes)
        return {
            v.code for v in check(plan, seen, image_gates(TransferRequest(None, PORT, waive=waive)))
        }

    assert "transfer-port" in said(held, away)
    assert "transfer-port" not in said(held)
    fabric = (HEAD, "ports", (h.port(PORT, address="10.0.0.1"),))
    assert "transfer-port" not in said(fabric, away) and "transfer-port" in said(fabric)
    gates = weights_gates(TransferRequest(HEAD, PORT, waive))
    assert "transfer-port" in {v.code for v in check(plan, rig(plan, held, away), gates)}


@pytest.mark.parametrize("path", ["network.peers.0.route_device", "network.links.0.carrier"])
def test_a_way_that_is_not_the_fabric_blocks(plan: Plan, path: str) -> None:
    value = "eth0" if path.endswith("device") else False
    for find in (image_findings, weights_findings):
        codes = {v.code for v in find(plan, rig(plan, (WORKER, path, value)))}
        assert codes & {"fabric-route", "fabric-down"}


def test_whole_weights_give_to_cut_ones(plan: Plan) -> None:
    seen = rig(plan, (HEAD, "weights.0.files.5.header_says", 10))
    assert weights_source(plan, seen, None) == WORKER
    assert weights_findings(plan, seen) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("weights.0.files.5.broken", "cut off in its header, at byte 9 of 12"),
        ("weights.0.files.0.magic", e.LFS_POINTER),
    ],
)
def test_a_node_with_a_bad_file_is_no_giver(plan: Plan, path: str, value: str) -> None:
    """A header that ends too early; a config that is a git-lfs pointer."""
    seen = rig(plan, (HEAD, path, value))
    assert weights_source(plan, seen, None) == WORKER
    assert weights_findings(plan, seen) == []
    (found,) = weights_findings(plan, seen, HEAD)
    assert (found.code, found.node) in {("weights-cut", HEAD), ("weights-magic", HEAD)}


def test_missing_weights_come_from_the_node_that_has_them(plan: Plan) -> None:
    seen = rig(plan, (HEAD, "weights.0.exists", False), (HEAD, "weights.0.files", ()))
    assert weights_source(plan, seen, None) == WORKER and weights_findings(plan, seen) == []
    (found,) = [v for v in check(plan, seen) if v.code == "weights-missing"]
    assert f"deploys/weights.py --data from={WORKER}" in found.remedy


def test_weights_that_differ_and_are_whole_need_a_word(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "weights.0.files.3.size", 7))
    assert weights_source(plan, seen, None) is None
    (found,) = weights_findings(plan, seen)
    assert found.code == "weights-differ" and "from=NODE" in found.remedy
    assert weights_findings(plan, seen, HEAD) == []


def test_a_chosen_giver_whose_weights_are_cut_is_refused(plan: Plan) -> None:
    seen = rig(plan, (HEAD, "weights.0.files.5.header_says", 10))
    (found,) = weights_findings(plan, seen, HEAD)
    assert (found.code, found.node) == ("weights-cut", HEAD)


def test_nobody_has_weights(plan: Plan) -> None:
    none = ((HEAD, "weights.0.exists", False), (WORKER, "weights.0.exists", False))
    found = weights_findings(plan, rig(plan, *none))
    assert [v.code for v in found] == ["weights-missing"] and "hf download" in found[0].remedy


def test_a_weights_run_that_was_cut_off_is_taken_up(plan: Plan) -> None:
    mine = (h.change("OPEN", deploy="weights"),)
    assert weights_findings(plan, rig(plan, (WORKER, "journal.changes", mine))) == []
    (found,) = image_findings(plan, rig(plan, (WORKER, "journal.changes", mine)))
    assert found.code == "change-open" and "deploys/weights.py" in found.remedy
    theirs = (h.change("OPEN", deploy="serve"),)
    (found,) = weights_findings(plan, rig(plan, (WORKER, "journal.changes", theirs)))
    assert found.code == "change-open"


def test_room_for_weights_is_what_lacks(plan: Plan) -> None:
    seen = rig(plan, (WORKER, "weights.0.exists", False), (WORKER, "weights.0.files", ()))
    size = sum(x.size for x in seen[HEAD].weights[0].files)  # type: ignore[union-attr]
    index = [d.path for d in seen[WORKER].disks].index(plan.specs[WORKER].weights)
    enough = f.put(seen[WORKER], f"disks.{index}.free", size + GIB)
    assert weights_findings(plan, {**seen, WORKER: enough}) == []
    short = f.put(seen[WORKER], f"disks.{index}.free", size)
    (found,) = weights_findings(plan, {**seen, WORKER: short})
    assert found.code == "transfer-room" and "docker" not in found.remedy
