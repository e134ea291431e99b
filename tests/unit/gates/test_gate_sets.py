"""Every serving gate: a healthy rig passes; one broken value gives one code, on its node."""

from __future__ import annotations

from typing import Any

import pytest

from gates.core.check import GIB
from gates.core.codes import CODES, violation
from gates.core.violation import Violation
from gates.core.waiver import blocking
from gates.doctor.explaining_boot import BOOT_CAUSES
from gates.doctor.venvcauses import VENV_CAUSES
from gates.gate_sets import check
from schema.desired.plan import UNIT, Plan
from schema.observed.snapshot import Unreadable
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan
from tests.unit.gates.doctor.test_examine import DOCTORS_OWN

HEAD, WORKER = "spark1", "spark2"
UNSUPERVISED = {"container_id": None, "unit": None, "cgroup": "/user.slice/session-3.scope"}

# code, node it must name, what is broken there (path in the snapshot), the value that breaks it
BROKEN: list[tuple[str, str, str, Any]] = [
    ("clock-skew", WORKER, "identity.clock_unix_s", h.NOW + 9),
    ("clock-skew", WORKER, "identity.clock_unix_s", h.NOW - 9),
    ("driver-missing", WORKER, "gpus.gpus", ()),
    ("driver-missing", WORKER, "gpus", Unreadable(unreadable="nvidia-smi not found")),
    ("driver-mismatch", WORKER, "gpus.driver_version", "570.133.20"),
    ("driver-stand-in", WORKER, "gpus.stand_in", True),
    ("memory-short", WORKER, "memory.available", 90 * GIB),
    ("page-cache", WORKER, "memory.free", 5 * GIB),
    ("engine-orphan", WORKER, "engine_processes", (h.process(77, "VLLM::Worker", **UNSUPERVISED),)),
    ("engine-orphan", HEAD, "engine_processes", (h.process(77, "VLLM::Worker"),)),
    ("port-taken", HEAD, "ports", (h.port(8000, process="nginx", unit="nginx.service"),)),
    ("port-taken", HEAD, "ports", (h.port(29501, pid=None, process=None, unit=None),)),
    ("port-taken", WORKER, "ports", (h.port(29501, pid=77, process="VLLM::Worker", unit=None),)),
    ("fabric-down", WORKER, "network.links.0.carrier", False),
    ("fabric-down", HEAD, "network.links.0.state", "DOWN"),
    ("fabric-down", HEAD, "network.links.0.name", "bond1"),
    ("fabric-address", WORKER, "network.links.0.addresses", ("10.0.0.20/24",)),
    ("fabric-mtu", WORKER, "network.links.0.mtu", 1500),
    ("fabric-mtu", HEAD, "network.links.2.mtu", 1500),
    ("fabric-route", WORKER, "network.peers.0.route_device", "eth0"),
    ("fabric-route", WORKER, "network.peers", ()),
    ("fabric-ping", WORKER, "network.peers.0.full_size_ping", False),
    ("fabric-ping", HEAD, "network.peers.0.full_size_ping", None),
    ("bond-slave-down", WORKER, "network.links.0.bond_slaves_down", ("enp1s0f0np0",)),
    ("disk-room", WORKER, "disks.3.free", 50 * 1024**2),
    ("disk-room", HEAD, "disks.1.free", GIB),
    ("disk-room", HEAD, "disks.3.inodes_free", 3),
    ("disk-room", WORKER, "disks.3.read_only", True),
    ("disk-room", WORKER, "docker.root", "/data/docker"),
    ("disk-room", WORKER, "docker.containerd", "/var/lib/containerd"),
    ("journal-broken", WORKER, "journal.broken", ("/var/lib/rigbook/journal/x.json",)),
    ("lock-held", WORKER, "journal.lock_held", True),
    ("change-open", WORKER, "journal.changes", (h.change("OPEN"), h.change("COMMITTED"))),
    ("change-inconsistent", HEAD, "journal.changes", (h.change("INCONSISTENT"),)),
    ("image-missing", WORKER, "docker.images", ()),
    ("image-arch", WORKER, "docker.images.0.arch", "amd64"),
    ("patch-missing", WORKER, "image_files.0.matches.0.count", 1),
    ("patch-missing", HEAD, "image_files.0.matches", ()),
    ("patch-missing", HEAD, "image_files", ()),
    ("patch-doubled", WORKER, "image_files.0.matches.0.count", 3),
    ("unit-ghost", WORKER, "units", (h.unit(exec_start_exists=False),)),
    ("weights-missing", WORKER, "weights.0.exists", False),
    ("weights-missing", WORKER, "weights", ()),
    ("weights-differ", WORKER, "weights.0.files.3.size", 7),
    ("weights-cut", WORKER, "weights.0.files.5.header_says", 7),
    ("weights-differ", WORKER, "weights.0.files.0.name", "config.yaml"),
    ("weights-shards-missing", HEAD, "weights.0.missing_shards", ("model-00047.safetensors",)),
]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def test_healthy_rig_passes(plan: Plan) -> None:
    found = check(plan, f.healthy(plan))
    assert blocking(found) == []
    # The seed's own choices, which deserve a warning each.
    assert [v.code for v in found] == ["hca-two-ports", "image-latest", "privileged"]


def test_serving_rig_passes(plan: Plan) -> None:
    assert blocking(check(plan, f.serving(plan))) == []


@pytest.mark.parametrize(
    ("code", "node", "path", "value"), BROKEN, ids=[f"{c}-{p}" for c, _, p, _ in BROKEN]
)
def test_one_broken_value_gives_one_code(
    plan: Plan, code: str, node: str, path: str, value: Any
) -> None:
    seen = f.healthy(plan)
    seen[node] = f.put(seen[node], path, value)
    found = f.beyond_usual(plan, seen)
    assert {(v.code, v.node) for v in found} == {(code, node)}
    for one in found:
        assert one.severity == CODES[code].severity
        assert one.summary and one.evidence and one.remedy
        assert "\n" not in one.summary + one.evidence + one.remedy


def test_unreachable_node(plan: Plan) -> None:
    seen: dict[str, Any] = f.healthy(plan)
    seen[WORKER] = Unreadable(unreadable="timed out after 5 s")
    (found,) = f.beyond_usual(plan, seen)
    assert (found.code, found.node, found.unknown) == ("nodes-reachable", WORKER, True)
    assert found.evidence == "timed out after 5 s"
    assert "milo@192.168.1.12" in found.remedy


def test_ghost_that_serve_mends_or_that_is_not_ours_only_warns(plan: Plan) -> None:
    stale = h.unit(exec_start=("/workspace/vllm-head-090.sh",), exec_start_exists=False)
    overridden = stale.model_copy(update={"drop_ins": (f"/etc/systemd/system/{UNIT}.d/x.conf",)})
    foreign = stale.model_copy(update={"name": "vllm-ds4-head.service", "fragment": "/x"})
    for unit, severity in ((stale, "warn"), (overridden, "block"), (foreign, "warn")):
        seen = f.healthy(plan)
        seen[HEAD] = f.put(seen[HEAD], "units", (unit,))
        (found,) = f.beyond_usual(plan, seen)
        assert (found.code, found.severity) == ("unit-ghost", severity)
        assert "/workspace/vllm-head-090.sh" in found.evidence


def test_an_absent_image_is_one_finding(plan: Plan) -> None:
    seen = f.healthy(plan)
    silent = Unreadable(unreadable="no image here")
    seen[HEAD] = f.put(f.put(seen[HEAD], "docker.images", ()), "image_files", silent)
    assert [v.code for v in f.beyond_usual(plan, seen)] == ["image-missing"]


def test_findings_stand_lowest_layer_first_then_by_rank(plan: Plan) -> None:
    seen: dict[str, Any] = f.healthy(plan)
    for node in (WORKER, HEAD):
        seen[node] = f.put(seen[node], "journal.lock_held", True)
        seen[node] = f.put(seen[node], "memory.available", 3 * GIB)
    found = f.beyond_usual(plan, seen)
    assert [(v.code, v.node) for v in found] == [
        ("memory-short", HEAD),
        ("memory-short", WORKER),
        ("lock-held", HEAD),
        ("lock-held", WORKER),
    ]


def test_the_rank_orders_findings_however_a_gate_gives_them(plan: Plan) -> None:
    def backwards(plan: Plan, seen: Any) -> list[Violation]:
        return [
            violation("lock-held", node.name, "s", evidence="e", remedy="r")
            for node in reversed(plan.rig.nodes)
        ]

    assert [v.node for v in check(plan, f.healthy(plan), [backwards])] == [HEAD, WORKER]


# test_gates_compatibility, test_gates_wheels, test_filepatches, test_provenance
BEFORE_AN_UPGRADE = {
    "version-broken",
    "version-unknown",
    "torch-cpu",
    "torch-variant",
    "wheel-missing",
    "old-wheel-missing",
    "backup-required",
    "patch-drifted",
    "patch-unknown",
    "module-missing",
}


def test_the_table_breaks_every_code_of_a_gate() -> None:
    # Other files of tests/unit test these; the doctor's own are in test_doctor_findings.
    elsewhere = {
        *DOCTORS_OWN,
        # Tested in test_gates_moving.
        "transfer-port",
        "transfer-room",
        "transfer-way",
        *(code for code in CODES if code.startswith("libvgpu-")),  # test_gates_library
        *("pod-stuck", "model-file", "gpu-limit", "gpu-limit-short"),  # test_gates_gpulimit
        "other-recipe",  # tests/plans/test_restart
        "nodes-reachable",
        "gate-error",
        "image-differs",
        "weights-magic",
        "forbidden-env",
        "hca-two-ports",
        "enforce-eager",
        "image-latest",
        "privileged",
        *VENV_CAUSES,
        *BOOT_CAUSES,  # test_gates_boot
        *BEFORE_AN_UPGRADE,
    }
    unreadable = {code for code in CODES if code.endswith("-unreadable")}
    assert {code for code, *_ in BROKEN} | elsewhere | unreadable == set(CODES)
