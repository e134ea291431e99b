"""Gates of image and weights: what counts as the same, and what a file really is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gates.weights.weights import weights_cut
from schema.desired.plan import Plan
from schema.observed.files import WeightsFile
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.recipe import ImageBuild
from tests.unit.builders import engine_parts as e
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

HEAD, WORKER = "spark1", "spark2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def both(plan: Plan, path: str, head: Any, worker: Any) -> dict[str, NodeSnapshot]:
    seen = f.healthy(plan)
    return {HEAD: f.put(seen[HEAD], path, head), WORKER: f.put(seen[WORKER], path, worker)}


def test_image_differs_by_content_never_by_id(plan: Plan) -> None:
    image = e.image(plan)
    other = {"digests": (), "layers": ("sha256:" + "9" * 64,)}
    (found,) = f.beyond_usual(
        plan, both(plan, "docker.images.0", image, image.model_copy(update=other))
    )
    assert (found.code, found.node) == ("image-differs", WORKER)
    assert HEAD in found.evidence and WORKER in found.evidence
    assert "deploys/image.py --data from=" in found.remedy

    moved = image.model_copy(update={"id": "sha256:" + "7" * 64, "digests": ()})
    assert f.beyond_usual(plan, both(plan, "docker.images.0", image, moved)) == []
    config = moved.model_copy(update={"config_sha256": "0" * 64})
    assert [v.code for v in f.beyond_usual(plan, both(plan, "docker.images.0", image, config))] == [
        "image-differs"
    ]


def test_an_image_that_no_node_has_is_built_where_the_recipe_says_how(plan: Plan) -> None:
    """A pull of a name that is ours alone asks a registry that does not know it."""
    found = f.beyond_usual(plan, both(plan, "docker.images", (), ()))
    assert all(" (pulls " in v.remedy for v in found if v.code == "image-missing")
    build = ImageBuild(template="vllm-spark", base="scratch")
    container = plan.recipe.container.model_copy(update={"build": build})
    recipe = plan.recipe.model_copy(update={"container": container})
    built = dataclasses.replace(plan, recipe=recipe)
    found = f.beyond_usual(built, both(built, "docker.images", (), ()))
    assert {v.remedy for v in found if v.code == "image-missing"} == {
        "pyinfra INVENTORY deploys/image.py --data build=true"
    }


@pytest.mark.parametrize(
    ("magic", "named"),
    [
        (e.GGUF, "gguf"),
        (e.LFS_POINTER, "git-lfs pointer"),
        ("00" * 16, "unfinished download"),
        ("", "unfinished download"),
        (b"PK\x03\x04".hex() + "00" * 12, "PyTorch zip"),
        ("ffffffffffffff7f7b22", "unknown"),
        ((10**8 + 1).to_bytes(8, "little").hex() + "7b22", "unknown"),
        ((1000).to_bytes(8, "little").hex() + "2222", "unknown"),
    ],
)
def test_weights_magic_names_the_format(plan: Plan, magic: str, named: str) -> None:
    seen = both(plan, "weights.0.files.5.magic", magic, magic)
    found = f.beyond_usual(plan, seen)
    assert {(v.code, v.node) for v in found} == {("weights-magic", HEAD), ("weights-magic", WORKER)}
    assert named in found[0].evidence


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer.model"])
def test_a_pointer_beside_the_weights_is_named(plan: Plan, name: str) -> None:
    pointer = WeightsFile(name=name, size=133, magic=e.LFS_POINTER, sha256=None)
    files = (pointer, *e.weights(plan, plan.rig.head).files[1:])
    found = f.beyond_usual(plan, both(plan, "weights.0.files", files, files))
    assert {(v.code, v.node) for v in found} == {("weights-magic", HEAD), ("weights-magic", WORKER)}
    assert f"{name} is a git-lfs pointer" in found[0].evidence


def test_a_pointer_that_no_engine_opens_is_nobodys_business(plan: Plan) -> None:
    files = e.weights(plan, plan.rig.head).files
    for name in ("figures/benchmark.PNG", "README.md", ".cache/x"):
        pointer = WeightsFile(name=name, size=133, magic=e.LFS_POINTER, sha256=None)
        assert not f.beyond_usual(plan, both(plan, "weights.0.files", *[(*files, pointer)] * 2))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"header_says": 10**12}, "its header says 1000000000000"),
        ({"broken": "cut off in its header, at byte 9 of 12"}, "at byte 9 of 12"),
    ],
)
def test_a_gguf_that_is_cut_is_named(plan: Plan, more: dict[str, object], said: str) -> None:
    file = (
        e.weights(plan, plan.rig.head)
        .files[1]
        .model_copy(update={"name": "m.gguf", "magic": e.GGUF, **more})
    )
    (found, _) = weights_cut(plan, both(plan, "weights.0.files", (file,), (file,)))
    assert (found.code, found.node) == ("weights-cut", HEAD) and said in found.evidence
    padded = file.model_copy(update={"header_says": 1, "broken": None})
    assert not weights_cut(plan, both(plan, "weights.0.files", (padded,), (padded,)))


def test_weights_of_the_other_loader(plan: Plan) -> None:
    gguf = (
        e.weights(plan, plan.rig.head)
        .files[1]
        .model_copy(update={"name": "model.gguf", "magic": e.GGUF})
    )
    found = f.beyond_usual(plan, both(plan, "weights.0.files", (gguf,), (gguf,)))
    assert {v.code for v in found} == {"weights-magic", "weights-shards-missing"}


def test_too_few_shards(plan: Plan) -> None:
    files = e.weights(plan, plan.rig.head).files[:-1]
    found = f.beyond_usual(plan, both(plan, "weights.0.files", files, files))
    assert {v.code for v in found} == {"weights-shards-missing"}
    assert "45 files, the recipe says 46" in found[0].evidence


def test_deep_hashes_decide_where_both_have_one(plan: Plan) -> None:
    path = "weights.0.files.4.sha256"
    assert f.beyond_usual(plan, both(plan, path, "a" * 64, "a" * 64)) == []
    assert f.beyond_usual(plan, both(plan, path, "a" * 64, None)) == []
    (found,) = f.beyond_usual(plan, both(plan, path, "a" * 64, "b" * 64))
    assert found.code == "weights-differ"
    assert (
        "sha256 aaaaaaaaaaaa" in found.evidence
        and "deploys/weights.py --data from=" in found.remedy
    )


def test_weights_that_are_not_whole_are_never_named_as_the_source(plan: Plan) -> None:
    """weights refuses a giver whose own files are cut: such a command would mend nothing."""
    seen = f.healthy(plan)
    cut = f.put(f.put(seen[HEAD], "weights.0.files.5.size", 7), "weights.0.files.5.header_says", 9)
    found = {v.code: v for v in f.beyond_usual(plan, {**seen, HEAD: cut})}
    command = f"pyinfra INVENTORY deploys/weights.py --data from={WORKER}"
    assert found["weights-cut"].remedy == found["weights-differ"].remedy == command
