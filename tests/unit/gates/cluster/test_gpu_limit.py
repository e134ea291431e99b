"""The doctor's findings about a Deployment on a shared GPU, with the seed's lines."""

from __future__ import annotations

import json
import shlex

import pytest

from gates.cluster import gpu_limit
from schema.observed.kube import Guarded, KubeLook, Live, ModelFile, ModelFiles
from schema.observed.snapshot import Unreadable
from tests.unit.builders.kube_parts import NAME, OOM, look

EDITS = {"--slots 4": "--slots 0"}


@pytest.mark.parametrize(("value", "count"), [("0m", 1), ("24x", 1), ("24000m", 0), (None, 0)])
def test_a_limit_that_hami_misreads(value: str | None, count: int) -> None:
    """Incident A3; another variable of that value is nobody's business."""
    found = list(gpu_limit.limits_readable("one", look(value)))
    assert [v.code for v in found] == ["gpu-limit"] * count


@pytest.mark.parametrize(
    ("template", "inside", "part"),
    [
        ("24000m", ("24000m",), None),
        ("24000m", ("20000m", "24000m"), "the template says '24000m'"),
        (None, ("0m",), "0 bytes to HAMi-core"),
        (None, ("20000m",), None),
        ("24000m", (), None),
    ],
)
def test_what_the_processes_have_counts(
    template: str | None, inside: tuple[str, ...], part: str | None
) -> None:
    """Fault 49, incident A3: the plugin sets the variable after the template."""
    live = Live(processes=2, values={NAME: inside, "OTHER": ("1",)})
    found = list(gpu_limit.limits_inside("one", look(template, live=live)))
    assert [v.code for v in found] == (["gpu-limit"] if part else [])
    assert part is None or part in found[0].evidence


def test_the_oom_line_names_what_is_lacking() -> None:
    """Incident A5."""
    found = list(gpu_limit.limit_enough("one", look(log=("boot", OOM))))
    assert [v.code for v in found] == ["gpu-limit-short"]
    assert "115,303,680 bytes = 110.0 MiB" in found[0].evidence
    assert "--data wanted=24232551680" in found[0].remedy
    assert list(gpu_limit.limit_enough("one", look(log=("fine",)))) == []


def guarded(*differs: str, **values: str) -> KubeLook:
    """A Deployment that a guard watches, and what of it differs."""
    guard = Guarded(container="engine", values={NAME: "24000m", **values}, edits=EDITS,
                    webhook=False, webhook_file="/root/hook", differs=differs)  # fmt: skip
    return look().model_copy(update={"guard": guard})


def test_a_limit_that_a_chart_took_away_is_named_with_the_way_back() -> None:
    """A chart that is deployed again resets it in silence; the remedy works as it is typed."""
    assert list(gpu_limit.limit_stayed("one", look())) == []
    assert list(gpu_limit.limit_stayed("one", guarded())) == []
    lost = f"{NAME} is '0m', it was set to '24000m'"
    (found,) = gpu_limit.limit_stayed("one", guarded(lost, SPEC="a b"))
    assert (found.code, found.severity) == ("gpu-limit-drift", "block") and lost in found.evidence
    words = shlex.split(found.remedy)
    assert words[:3] == ["pyinfra", "INVENTORY", "deploys/gpu_limit.py"]
    data = dict(word.split("=", 1) for word in words[3:] if word != "--data")
    assert data == {"guard": "true", "limit": "24000m", "device": "0", "set": '{"SPEC": "a b"}',
                    "edit": json.dumps(EDITS), "webhook_file": "/root/hook"}  # fmt: skip


def test_a_guard_that_cannot_be_read_is_not_one_that_is_content() -> None:
    dark = look().model_copy(update={"guard": Unreadable(unreadable="limit.json is not JSON")})
    assert [v.code for v in gpu_limit.limit_stayed("one", dark)] == ["cluster-unreadable"]


def test_a_pod_in_a_crash_loop() -> None:
    stuck = look(log=("Traceback", "asyncio.exceptions.TimeoutError", ""),
                 stuck="CrashLoopBackOff", restarts=7)  # fmt: skip
    found = list(gpu_limit.pods_run("one", stuck))
    assert [v.code for v in found] == ["pod-stuck"]
    assert found[0].evidence.startswith("asyncio.exceptions.TimeoutError")
    assert list(gpu_limit.pods_run("one", look(stuck="CrashLoopBackOff", leaving=True))) == []
    assert list(gpu_limit.pods_run("one", look())) == []


@pytest.mark.parametrize(
    ("kind", "broken", "wanted", "part"),
    [
        ("gguf", None, "safetensors", "it is gguf; its loader reads safetensors"),
        ("safetensors", None, "gguf", "it is safetensors; its loader reads gguf"),
        ("gguf", "cut off: its header promises 9 bytes, there are 8", "gguf", "cut off"),
        ("unknown (starts with 70ff)", None, "gguf", "unknown (starts with 70ff)"),
        (None, "/m: No such file or directory", "gguf", "No such file"),
        ("gguf", None, "gguf", None),
    ],
)
def test_target_and_drafter_are_what_their_loaders_read(
    kind: str | None, broken: str | None, wanted: str, part: str | None
) -> None:
    """Incident A2: a GGUF drafter for a loader of safetensors, and the reverse."""
    size = 8 if kind else None
    file = ModelFile(path="/m", size=size, format=kind, said="", broken=broken)
    found = list(gpu_limit.models_fit("one", ModelFiles(files=(file,)), {"/m": wanted}))
    assert [v.code for v in found] == (["model-file"] if part else [])
    assert part is None or part in found[0].evidence
