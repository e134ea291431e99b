"""Every serving gate: a healthy rig passes; one broken value gives one code, on its node."""

from __future__ import annotations

from typing import Any

import pytest

from gates import gate_sets
from gates.core.check import GIB
from gates.core.codes import CODES, violation
from gates.core.violation import Violation
from gates.core.waiver import blocking
from gates.gate_sets import check
from gates.host import other_rig
from schema.desired.plan import Plan
from schema.observed.snapshot import Unreadable
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan
from tests.unit.gates.test_tables import codes

HEAD, WORKER = "spark1", "spark2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def test_healthy_rig_passes(plan: Plan) -> None:
    found = check(plan, f.healthy(plan))
    assert blocking(found) == []
    # The seed's own choices, which deserve a warning each.
    assert [v.code for v in found] == ["image-latest", "privileged", *["hca-two-ports"] * 2]


def test_serving_rig_passes(plan: Plan) -> None:
    assert blocking(check(plan, f.serving(plan))) == []


def test_unreachable_node(plan: Plan) -> None:
    seen: dict[str, Any] = f.healthy(plan)
    seen[WORKER] = Unreadable(unreadable="timed out after 5 s")
    (found,) = f.beyond_usual(plan, seen)
    assert (found.code, found.node, found.unknown) == ("nodes-reachable", WORKER, True)
    assert found.evidence == "timed out after 5 s"
    assert "milo@192.168.1.12" in found.remedy


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


# Found by a test of its own file, since a case of the tables cannot say it.
ELSEWHERE = {
    "version-broken", "version-unknown",  # artifact/test_compatibility.py
    "kernel-known-bad", "driver-known-bad",  # artifact/test_known_bad.py
    "torch-cpu", "torch-variant", "wheel-missing", "old-wheel-missing",  # artifact/test_pip_plan.py
    "patch-drifted", "patch-unknown",  # artifact/test_file_patches.py
    "libvgpu-target", "libvgpu-other", "libvgpu-candidate", "libvgpu-symbols", "libvgpu-preload",
    "libvgpu-drift", "libvgpu-old-mapped",  # cluster/test_vgpu_library.py
    "pod-stuck", "model-file", "gpu-limit", "gpu-limit-short",
    "gpu-limit-drift",  # cluster/test_gpu_limit.py
    "weights-denied",
    "arguments-refused", "arguments-unchecked",  # engine/test_arguments.py
    "answer-slow", "no-way-here", "cannot-answer", "no-answer",  # doctor/test_endpoint.py
    "hands-needed", "wol-card", "wol-unarmed",  # firmware/test_checklist.py
    "growth-large",  # host/test_growth.py
    "backup-one-disk",  # host/test_backups.py
    "host-differs", "rebooted-unasked", "reboot-loop", "memory-kill",  # host/test_keeps_alive.py
    "guard-missing", "guard-tight",
    "enforce-eager",  # recipe/test_choices.py
    "rdma-gid",  # transfer/test_rdma.py
    "weights-mount",  # weights/test_mount.py
    "other-rig",  # tests/plans/common/test_other_rig.py
    "other-recipe",  # tests/plans/engine/test_restart.py
    "secret-missing",  # tests/plans/engine/test_secrets.py
    "nodes-reachable", "gate-error",  # test_unknown_blocks.py
}  # fmt: skip


@pytest.mark.parametrize("name", ["SERVING", "CHANGING", "UPGRADING", "RESTARTING", "REBOOTING",
                                  "REACHING"])  # fmt: skip
def test_no_set_before_a_change_lacks_the_gate_of_another_rig(name: str) -> None:
    assert set(other_rig.GATES) <= set(getattr(gate_sets, name))


def test_every_code_of_a_gate_is_found_by_a_test() -> None:
    unreadable = {code for code in CODES if code.endswith("-unreadable")}
    assert codes() | ELSEWHERE | unreadable == set(CODES)
    assert not codes() & ELSEWHERE
