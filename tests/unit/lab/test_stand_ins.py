"""The twin's image has files where its recipe looks for patches and modules; the layer is the same
each time it is made."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO

import yaml

from lab.engine import stand_ins
from lab.files import add_layer
from lab.rehearsal.recipe import twin_recipe
from schema.recipe.recipe import Recipe
from tests.unit.builders.spark_rig import ROOT, spark_plan

BASE = {"RootFS": {"Layers": ["sha256:" + "1" * 64]}, "Architecture": "amd64", "Os": "linux",
        "Config": {"Env": ["PATH=/bin"], "Cmd": ["bash"], "Labels": None}}  # fmt: skip


def spark() -> Recipe:
    """The rig's own recipe."""
    return spark_plan().recipe


def test_a_patch_stands_there_as_often_as_the_recipe_says() -> None:
    made, out = twin_recipe(spark(), 2)
    texts = stand_ins.files(made)
    for patch in made["patches"]:
        place = patch["path"].replace("python3*", "python3.12")
        assert texts[place].count(patch["contains"]) == patch["count"]
        assert "versions" not in patch and "unless" not in patch, "the small engine is later"
    first = made["patches"][0]["id"]
    doubled = stand_ins.files(made, {first: 3})
    assert sum(one != other for one, other in zip(texts.values(), doubled.values(), strict=True))
    assert f"{stand_ins.LIBRARY}/deep_gemm/include/cutlass/cutlass.h" in texts
    assert any("stand-ins for" in row for row in out)
    assert Recipe.model_validate({"name": "x", **made}).modules


def test_the_same_files_are_the_same_layer_and_lead_into_no_other_folder() -> None:
    texts = {"/usr/local/lib/b.txt": "b", "/usr/a.txt": "a"}
    made = add_layer.layer(texts)
    assert made == add_layer.layer(dict(reversed(texts.items())))
    with tarfile.open(fileobj=BytesIO(made)) as tar:
        assert tar.getnames() == ["usr", "usr/local", "usr/local/lib", "usr/a.txt",
                                  "usr/local/lib/b.txt"]  # fmt: skip
    with tarfile.open(fileobj=BytesIO(add_layer.archive(BASE, "x:twin", made))) as tar:
        (row,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(row["Config"]))  # type: ignore[arg-type]
        assert row["RepoTags"] == ["x:twin"] and len(row["Layers"]) == 2
        assert row["Layers"][0] not in tar.getnames(), "docker has the layers below"
        assert config["rootfs"]["diff_ids"][0] == BASE["RootFS"]["Layers"][0]  # type: ignore[index]


def test_a_recipe_without_them_has_the_small_engine_itself() -> None:
    assert stand_ins.command("reg/x:1", {}).startswith("docker tag ")
    assert " reg.lab:5000/x:latest " in stand_ins.command("reg.lab:5000/x", {"/a": "b"})
    tiny = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    assert stand_ins.files(tiny) == {}
