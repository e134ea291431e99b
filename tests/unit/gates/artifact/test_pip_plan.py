"""The gate on pip's plan: torch's variant, wheels that are not there, the way back."""

from __future__ import annotations

import json

import pytest

from gates.artifact.pip_plan import wheels, would_install
from gates.core.waiver import UNWAIVABLE
from schema.observed.pip_report import VenvWheels, parse, variant_of
from schema.recipe.wheels import WheelsSpec
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
CPU_PLAN = spark_plan(recipe="tiny", profile="balanced")
NODE = PLAN.rig.head.name
ENVIRONMENT = {"platform_system": "Linux", "platform_machine": "x86_64", "sys_platform": "linux"}


def report(*items: tuple[str, str], requires: tuple[str, ...] = (), url: str = "") -> str:
    """A report of pip over these (name, version)."""
    rows = [
        {
            "metadata": {"name": name, "version": version, "requires_dist": list(requires)},
            "download_info": {"url": url or f"file:///w/{name}-{version}-py3-none-any.whl"},
            "requested": name == "vllm",
        }
        for name, version in items
    ]
    return json.dumps(
        {"version": "1", "pip_version": "25.0", "install": rows, "environment": ENVIRONMENT}
    )


OLD = report(("vllm", "0.19.2rc1"))
NEW = ("vllm", "0.20.2")


def answer(wanted: str | None = None, **changes: object) -> VenvWheels:
    """A venv with vllm 0.19.2rc1 and torch 2.9.0+cu130, and pip's plan for 0.20.2."""
    values: dict[str, object] = {
        "python": "/opt/vllm/bin/python",
        "pip": "25.0",
        "args": (),
        "installed": (
            {"name": "vllm", "version": "0.19.2rc1", "path": "/opt/vllm/vllm.dist-info"},
            {"name": "torch", "version": "2.9.0+cu130", "path": "/opt/vllm/torch.dist-info"},
        ),
        "torch_cuda": "13.0",
        "wanted": wanted or report(NEW),
        "wanted_error": None,
        "old": OLD,
        "old_error": None,
        **changes,
    }
    return VenvWheels.model_validate(values)


def codes(seen: VenvWheels, **spec: object) -> list[tuple[str, str]]:
    """The codes and severities of the findings."""
    rules = WheelsSpec.model_validate(spec)
    found = wheels(PLAN, rules, "0.20.2", {NODE: seen})
    assert all(v.evidence and v.remedy and v.node == NODE for v in found)
    return [(v.code, v.severity) for v in found]


def test_an_upgrade_that_leaves_torch_alone_is_no_finding() -> None:
    assert codes(answer()) == []
    assert would_install(WheelsSpec(), answer()) == "0.20.2"


def test_a_torch_of_the_same_variant_is_no_finding() -> None:
    assert codes(answer(report(NEW, ("torch", "2.10.0+cu130")))) == []


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("2.10.0+cpu", "torch-cpu"),
        ("2.10.0", "torch-cpu"),
        ("2.10.0+cu128", "torch-variant"),
        ("2.10.0+rocm6.4", "torch-variant"),
    ],
)
def test_a_torch_of_another_variant_is_refused(version: str, code: str) -> None:
    """C1: pip resolves it without a word; the C extension does not load."""
    seen = answer(report(NEW, ("torch", version)))
    assert codes(seen) == [(code, "block")]
    (found,) = wheels(PLAN, WheelsSpec(), "0.20.2", {NODE: seen})
    assert "2.9.0+cu130 (cu130) now" in found.evidence and version in found.evidence


def test_the_recipe_may_want_another_variant() -> None:
    seen = answer(report(NEW, ("torch", "2.10.0+cu128")))
    assert codes(seen, torch_variant="cu128") == []
    assert codes(answer(), torch_variant="cu128") == [("torch-variant", "block")]


def test_on_a_rig_without_gpus_the_recipe_rules() -> None:
    seen = answer(
        report(NEW, ("torch", "2.10.0+cpu")),
        installed=({"name": "torch", "version": "2.9.0+cpu", "path": "/t"},),
        torch_cuda="",
    )

    def found(spec: WheelsSpec) -> list[str]:
        rows = wheels(CPU_PLAN, spec, "0.20.2", {CPU_PLAN.rig.head.name: seen})
        return [v.code for v in rows]

    assert found(WheelsSpec()) == [] and found(WheelsSpec(torch_variant="cpu")) == []
    assert found(WheelsSpec(torch_variant="cu130")) == ["torch-variant"]


def test_a_torch_that_does_not_say_what_it_is_is_unknown() -> None:
    """P5; a recipe that names the variant answers it."""
    installed = ({"name": "torch", "version": "2.9.0", "path": "/t"},)
    seen = answer(report(NEW, ("torch", "2.10.0+cu130")), installed=installed, torch_cuda=None)
    (found,) = wheels(PLAN, WheelsSpec(), "0.20.2", {NODE: seen})
    assert found.code == "torch-variant" and found.unknown and "torch_variant" in found.remedy
    assert codes(seen, torch_variant="cu130") == []


@pytest.mark.parametrize(
    ("requires", "machine", "variant"),
    [
        ('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"', "x86_64", "cu12"),
        ("nvidia-cudnn-cu13==9.1", "x86_64", "cu13"),
        ('cuda-toolkit[cudart]==13.0.2; platform_machine == "x86_64"', "x86_64", "cu13"),
        ('nvidia-cuda-runtime-cu12==12.8.90; platform_machine == "x86_64"', "aarch64", "cpu"),
        ("sympy>=1.13", "x86_64", "cpu"),
    ],
)
def test_a_torch_of_the_plain_index_is_told_by_what_it_asks_for(
    requires: str, machine: str, variant: str
) -> None:
    """Its version has no local part; on arm64 the plain index has a CPU build."""
    parsed = parse(report(("torch", "2.10.0"), requires=(requires,)))
    torch = parsed.item("torch")
    assert torch is not None
    assert variant_of(torch, {**ENVIRONMENT, "platform_machine": machine}) == variant


def test_a_variant_in_the_file_s_name_counts() -> None:
    url = "http://host/whl/cu130/torch-2.10.0%2Bcu130-cp312-cp312-linux_x86_64.whl"
    torch = parse(report(("torch", "2.10.0"), url=url)).item("torch")
    assert torch is not None and variant_of(torch, ENVIRONMENT) == "cu130"


def test_cu12_of_the_plain_index_is_any_cuda_12() -> None:
    line = ("nvidia-cuda-runtime-cu12==12.8.90",)
    seen = answer(
        report(("torch", "2.10.0"), requires=line),
        installed=({"name": "torch", "version": "2.9.0+cu128", "path": "/t"},),
    )
    assert codes(seen) == []


def test_a_wheel_that_cannot_be_had_blocks_and_cannot_be_waived() -> None:
    seen = answer(wanted=None, wanted_error="ERROR: No matching distribution found")
    seen = seen.model_copy(update={"wanted": None})
    assert codes(seen) == [("wheel-missing", "block")]
    assert {"wheel-missing", "pip-report-unreadable"} <= UNWAIVABLE


@pytest.mark.parametrize("text", ["not json", "[]", '{"version": "2", "install": []}', '{"x": 1}'])
def test_a_report_that_cannot_be_read_blocks(text: str) -> None:
    assert codes(answer(text)) == [("pip-report-unreadable", "block")]


def test_the_old_wheel_that_is_gone_is_told_before_an_upgrade() -> None:
    """B5: the backup is the only way back, and it says so."""
    seen = answer(old=None, old_error="ERROR: no matching distribution: vllm==0.19.2rc1")
    assert codes(seen) == [("old-wheel-missing", "warn")]
    (found,) = wheels(PLAN, WheelsSpec(), "0.20.2", {NODE: seen})
    assert "the backup is the only way back" in found.summary


def test_another_version_of_the_old_wheel_does_not_count() -> None:
    assert codes(answer(old=report(("vllm", "0.19.3")))) == [("old-wheel-missing", "warn")]


def test_a_first_installation_has_no_old_version() -> None:
    assert codes(answer(installed=(), torch_cuda=None, old=None)) == []


def test_nodes_that_did_not_answer_are_not_judged() -> None:
    assert wheels(PLAN, WheelsSpec(), "0.20.2", {}) == []
