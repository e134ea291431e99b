"""The data of a Kubernetes rig: a closed set, and hostile values are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from schema.core.errors import SpecError
from schema.desired.kubernetes import ClusterData
from schema.inputs.check import host_data
from schema.inputs.load import plan
from schema.inputs.runbooks import kind_of
from schema.render.library_files import STATE_PATH

GOOD: dict[str, object] = {
    "lan_address": "192.168.1.31", "ssh_user": "olares", "rig": "olares",
    "namespace": "ai", "deployment": "lucedflashqwen36one",
}  # fmt: skip
HOSTILE = ("'; touch X; #", "a\nb", "$(id)", "`id`", "-rf", "a b", "A", "")


def made(**changes: object) -> ClusterData:
    """The data with some keys changed, as every runbook of such a rig takes it."""
    kind = kind_of((), ClusterData)
    return host_data("one", {**GOOD, **changes}, dict.fromkeys(changes, "--data"), kind)


def test_defaults() -> None:
    found = made()
    assert (found.kubectl, found.vgpu_dir, found.patience_s) == ("auto", "/usr/local/vgpu", 600)


@pytest.mark.parametrize("key", ["namespace", "deployment", "container"])
@pytest.mark.parametrize("value", HOSTILE)
def test_names_of_kubernetes_are_plain(key: str, value: str) -> None:
    """Fault 51."""
    with pytest.raises(SpecError, match=key):
        made(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", "85b2ebe47bfe"),
        ("vgpu_dir", "/usr/local/v gpu"),
        ("vgpu_dir", "/a:/b"),
        ("vgpu_dir", "/a/../b"),
        ("target", "libvgpu.so"),
        ("without", "a;b"),
        ("kubectl", "kubectl --token=x"),
        ("set", {"A B": "x"}),
        ("set", {"A": "x\ny"}),
        ("set", {}),
        ("deadline", 1),
        ("port", 8000),
        ("service", "a;b"),
        ("start_budget_s", 1),
        ("wanted", -5),
        ("library", "-x"),
        ("nonsense", 1),
        ("reapply", True),
        ("waive", "libvgpu-other"),
    ],
)
def test_bad_values_are_one_line(key: str, value: object) -> None:
    with pytest.raises(SpecError) as caught:
        made(**{key: value})
    assert len(caught.value.problems) == 1 and key in caught.value.problems[0]


def test_lists_and_limits_as_they_are_typed() -> None:
    found = made(without="cuA,cuB", limit=-1, guard=True, reapply=True)
    typed = found.model_dump()
    assert typed["without"] == ("cuA", "cuB") and typed["limit"] == "-1"


def test_a_rig_has_one_host() -> None:
    with pytest.raises(SpecError, match="one host"):
        plan({"a": GOOD, "b": GOOD}, {}, Path())
    made = plan({"a": GOOD}, {}, Path())
    assert (made.rig.head.name, made.runtime, made.recipe.name) == (
        "a",
        "deployment",
        GOOD["deployment"],
    )
    assert STATE_PATH in made.requests["a"].files
