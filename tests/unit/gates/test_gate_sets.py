"""Every serving gate: a healthy rig passes; one broken value gives one code, on its node."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from gates import gate_sets, host
from gates.artifact import image_equal, image_present
from gates.core import (
    CODES,
    GIB,
    UNWAIVABLE,
    Violation,
    apply_waivers,
    blocking,
    per_node,
    require,
    violation,
)
from gates.doctor import DOCTOR, examine
from gates.gate_sets import RESTARTING, SERVING, check
from gates.gpu import driver_equal
from gates.host import SECTIONS
from gates.weights import weights_equal
from schema.core import SpecError
from schema.plan import Plan
from schema.snapshot import NodeSnapshot, Unreadable
from tests.unit.builders import rigs
from tests.unit.builders.host_parts import link, rdma_port
from tests.unit.builders.rigs import NAMES, four_plan, spark_plan
from tests.unit.gates.test_tables import codes

# The gates' house rules: documented codes, known codes only, no pyinfra.

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "gates").rglob("*.py"))
# The doctor adds what only a look at the running engine can tell.
REPORTING = [*SOURCES, *sorted((ROOT / "deploys").rglob("*.py"))]
PAGE = (ROOT / "docs" / "gates.md").read_text()


def sections() -> dict[str, str]:
    """The `## code` sections of docs/gates.md."""
    parts = re.split(r"^## (\S+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert set(sections()) == set(CODES)


def test_sections_stand_in_the_order_of_the_codes() -> None:
    assert list(sections()) == list(CODES)


def test_every_section_says_what_the_code_table_says() -> None:
    for code, text in sections().items():
        what = CODES[code]
        severity = {"block": "blocks", "warn": "warns"}[what.severity]
        waiver = "waivable" if what.waivable else "not waivable"
        line = f"{what.layer.name.lower()} · {severity} · {waiver}"
        assert text.strip().startswith(line), f"{code}: the section must start with: {line}"
        for part in ("Symptom:", "Why:", "Mend:"):
            assert part in text, f"{code}: {part} is missing"


def test_the_order_of_codes_follows_the_layers() -> None:
    layers = [what.layer for what in CODES.values()]
    assert layers == sorted(layers)


def literal_codes() -> set[str]:
    """The codes that gates and deploys name in a call of `violation`."""
    found = set()
    for source in REPORTING:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "violation":
                parts = ast.walk(node.args[0])
                found |= {str(n.value) for n in parts if isinstance(n, ast.Constant)}
    return found


def test_gates_and_doctor_report_known_codes_and_all_of_them() -> None:
    by_section = {code for code in CODES if code.endswith("-unreadable")}
    assert {str(code) for code in literal_codes()} | by_section == set(CODES)


def test_loading_the_gates_loads_no_pyinfra() -> None:
    loaded = "gates.gate_sets, gates.recipe, gates.core"
    code = f"import sys, {loaded}; print('pyinfra' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_gates_have_reasons() -> None:
    for source in SOURCES:
        text = source.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{source.name}: {node.name}"


HEAD, WORKER = "spark1", "spark2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def test_healthy_rig_passes(plan: Plan) -> None:
    found = check(plan, rigs.healthy(plan))
    assert blocking(found) == []
    # The seed's own choices, which deserve a warning each.
    assert [v.code for v in found] == ["image-latest", "privileged", *["hca-two-ports"] * 2]


def test_serving_rig_passes(plan: Plan) -> None:
    assert blocking(check(plan, rigs.serving(plan))) == []


def test_unreachable_node(plan: Plan) -> None:
    seen: dict[str, Any] = rigs.healthy(plan)
    seen[WORKER] = Unreadable(unreadable="timed out after 5 s")
    (found,) = rigs.beyond_usual(plan, seen)
    assert (found.code, found.node, found.unknown) == ("nodes-reachable", WORKER, True)
    assert found.evidence == "timed out after 5 s"
    assert "milo@192.168.1.12" in found.remedy


def test_findings_stand_lowest_layer_first_then_by_rank(plan: Plan) -> None:
    seen: dict[str, Any] = rigs.healthy(plan)
    for node in (WORKER, HEAD):
        seen[node] = rigs.put(seen[node], "journal.lock_held", True)
        seen[node] = rigs.put(seen[node], "memory.available", 3 * GIB)
    found = rigs.beyond_usual(plan, seen)
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

    assert [v.node for v in check(plan, rigs.healthy(plan), [backwards])] == [HEAD, WORKER]


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
    assert set(host.OTHER_RIG_GATES) <= set(getattr(gate_sets, name))


def test_every_code_of_a_gate_is_found_by_a_test() -> None:
    unreadable = {code for code in CODES if code.endswith("-unreadable")}
    assert codes() | ELSEWHERE | unreadable == set(CODES)
    assert not codes() & ELSEWHERE


# Waivers: a known risk passes in writing; what would break atomicity never does.

FOUND = [
    violation("fabric-mtu", "spark1", "s", evidence="e", remedy="r"),
    violation("fabric-mtu", "spark2", "s", evidence="e", remedy="r"),
    violation("privileged", None, "s", evidence="e", remedy="r"),
    violation("lock-held", "spark1", "s", evidence="e", remedy="r"),
]


def test_a_code_is_waived_on_all_nodes() -> None:
    remaining, waived = apply_waivers(FOUND, ("fabric-mtu",), "cable swap on Friday")
    assert [v.node for v in waived] == ["spark1", "spark2"]
    assert [v.code for v in remaining] == ["privileged", "lock-held"]


def test_without_waivers_everything_remains() -> None:
    assert apply_waivers(FOUND, (), None) == (FOUND, [])


def test_only_blocking_findings_block() -> None:
    assert [v.code for v in blocking(FOUND)] == ["fabric-mtu", "fabric-mtu", "lock-held"]


@pytest.mark.parametrize("code", sorted(UNWAIVABLE))
def test_what_cannot_be_waived_is_refused_even_where_it_was_not_found(code: str) -> None:
    with pytest.raises(SpecError, match=f"{code} cannot be waived"):
        apply_waivers([], (code,), "I know better")


def test_what_atomicity_stands_on_is_not_waivable() -> None:
    named = {"nodes-reachable", "lock-held", "change-open", "change-inconsistent", "journal-broken"}
    assert named <= UNWAIVABLE < set(CODES)


def test_an_unknown_code_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(SpecError) as error:
        apply_waivers(FOUND, ("fabric-mtv",), "typo")
    text = str(error.value)
    assert "did you mean fabric-mtu?" in text
    assert all(code in text for code in CODES)


@pytest.mark.parametrize("reason", [None, "", "  ", "two\nlines"])
def test_a_waiver_needs_a_reason_of_one_line(reason: str | None) -> None:
    with pytest.raises(SpecError, match="reason"):
        apply_waivers(FOUND, ("fabric-mtu",), reason)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(SpecError) as error:
        apply_waivers(FOUND, ("nope", "lock-held"), None)
    assert len(error.value.problems) == 3


# Unknown means blocked: whatever cannot be read, no gate raises and the run stops (P5).

READABLE = [
    name
    for name, field in NodeSnapshot.model_fields.items()
    if Unreadable in get_args(field.annotation)
]
GONE = Unreadable(unreadable="permission denied")


def test_no_section_of_the_snapshot_is_forgotten() -> None:
    assert {*SECTIONS, "image_files"} == set(READABLE)


@pytest.mark.parametrize("state", [rigs.healthy, rigs.serving])
@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize("section", READABLE)
def test_an_unreadable_section_blocks(section: str, node: str, state: Any) -> None:
    plan = spark_plan()
    seen = state(plan)
    seen[node] = rigs.put(seen[node], section, GONE)
    code = "driver-missing" if section == "gpus" else f"{section.replace('_', '-')}-unreadable"
    found = check(plan, seen)
    named = [v for v in found if (v.code, v.node, v.unknown) == (code, node, True)]
    # One line, however many gates wanted the section.
    assert len(named) == 1
    assert named[0].severity == "block" and named[0].evidence == "permission denied"
    assert "gate-error" not in {v.code for v in found}


@pytest.mark.parametrize("gate", SERVING, ids=lambda gate: gate.__name__)
def test_no_gate_raises_when_nothing_can_be_read(gate: Any) -> None:
    plan = spark_plan()
    blind = rigs.healthy(plan)
    for node in blind:
        for section in READABLE:
            blind[node] = rigs.put(blind[node], section, GONE)
    assert "gate-error" not in {v.code for v in check(plan, blind, [gate])}
    assert "gate-error" not in {v.code for v in check(plan, {}, [gate])}


@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize(("gate", "section"), [
    (driver_equal, "gpus"), (image_present, "docker"), (image_equal, "docker"),
    (weights_equal, "weights"),
])  # fmt: skip
def test_a_gate_that_compares_nodes_says_which_one_it_could_not_read(
    gate: Any, section: str, node: str
) -> None:
    """By itself: a deploy may ask for this gate, and not for the one of all sections."""
    plan = spark_plan()
    seen = rigs.healthy(plan)
    seen[node] = rigs.put(seen[node], section, GONE)
    assert [(v.node, v.unknown, v.severity) for v in gate(plan, seen)] == [(node, True, "block")]


def test_nobody_answers() -> None:
    wanted = [("nodes-reachable", "spark1"), ("nodes-reachable", "spark2")]
    for look in (check, examine):
        found = [v for v in look(spark_plan(), {}) if v.severity == "block"]
        assert [(v.code, v.node) for v in found] == wanted
    assert [v.code for gate in DOCTOR for v in gate(spark_plan(), {})] == []


def test_a_gate_that_fails_blocks() -> None:
    @per_node
    def careless(plan: Plan, node: Any, snapshot: NodeSnapshot) -> Any:
        yield from require(snapshot.shm, "shm")[7].mappers

    plan = spark_plan()
    (found,) = check(plan, rigs.healthy(plan), [careless])
    assert (found.code, found.severity, found.unknown) == ("gate-error", "block", True)
    assert "careless" in found.summary and "IndexError" in found.evidence


def test_a_recipe_without_gpus_asks_for_no_driver() -> None:
    plan = spark_plan(recipe="tiny")
    seen = {name: rigs.put(s, "gpus", GONE) for name, s in rigs.healthy(plan).items()}
    assert blocking(check(plan, seen)) == []


# A rig of four is gated as one: whole it is silent, and what is wrong is named where it is.

USUAL = {"hca-two-ports", "image-latest", "privileged"}


def found(folder: Path, state: Any, *changes: tuple[str, str, Any], doctor: bool = False) -> Any:
    """The findings beyond the recipe's own warnings, as code@node."""
    made = four_plan(folder)
    seen = dict(state(made))
    for node, path, value in changes:
        seen[node] = rigs.put(seen[node], path, value)
    rows = examine(made, seen, None) if doctor else [
        *check(made, seen), *check(made, seen, RESTARTING)]  # fmt: skip
    return {f"{v.code}@{v.node}" for v in rows if v.code not in USUAL}


@pytest.mark.parametrize("doctor", [False, True])
def test_a_whole_rig_is_silent(tmp_path: Path, doctor: bool) -> None:
    assert found(tmp_path, rigs.serving, doctor=doctor) == set()


def test_a_rig_that_is_ready_is_silent(tmp_path: Path) -> None:
    assert found(tmp_path, rigs.healthy) == set()


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ([("spark3", "docker.images", ())], {"image-missing@spark3"}),
        ([("spark4", "weights.0.files.3.size", 7)], {"weights-differ@spark4"}),
        ([("spark2", "network.peers.2.full_size_ping", False)], {"fabric-ping@spark2"}),
        ([("spark4", "network.rdma", ())], {"rdma-missing@spark4"}),
        # a port of the third is in a network of its own
        ([("spark3", "network.rdma.2", rdma_port("rocep1s0f0", "10.7.0.3")),
          ("spark3", "network.links.+", link("enp1s0f0np1", addresses=("10.7.0.3/24",)))],
         {"rdma-address@spark3"}),
        # two of four are cabled with each other: NCCL may use that, other rails are for all
        ([(name, "network.rdma.3", rdma_port("rocep1s0f1", f"10.7.0.{n}"))
          for n, name in ((3, "spark3"), (4, "spark4"))]
         + [(name, "network.links.+", link("x", addresses=(f"10.7.0.{n}/24",)))
            for n, name in ((3, "spark3"), (4, "spark4"))], set()),
        ([("spark3", "network.rdma.2.rate_gbit", 100.0)], {"rdma-rate@spark3"}),
    ],
)  # fmt: skip
def test_what_is_wrong_on_one_is_named_there(
    tmp_path: Path, changes: list[tuple[str, str, Any]], wanted: set[str]
) -> None:
    assert found(tmp_path, rigs.healthy, *changes) == wanted


@pytest.mark.parametrize("lost", NAMES[1:])
def test_one_lost_worker_of_three_breaks_the_rig(tmp_path: Path, lost: str) -> None:
    """The rig's own peers tell it: the head's connections with that worker alone are gone."""
    number = NAMES.index(lost)
    made = four_plan(tmp_path)
    head: Any = rigs.serving(made)["spark1"].connections
    left = tuple(c for c in head if c.peer_address != f"10.0.0.{number + 1}")
    assert len(left) == len(head) - 2
    changes = (("spark1", "connections", left), (lost, "connections", ()))
    assert found(tmp_path, rigs.serving, *changes, doctor=True) == {"wedged-pair@spark1"}
