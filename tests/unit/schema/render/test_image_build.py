"""The inputs of an image: what changes their hash, what a build gets, what is refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
import yaml

from node.docker.api import INPUTS_LABEL
from schema.core.errors import SpecError
from schema.recipe.recipe import ContainerSpec, ImageBuild
from schema.render.image_build import FOLDER, LABEL, METADATA, Context, context

DOCKERFILE = f"ARG BASE\nFROM ${{BASE}}\nCOPY {METADATA} /{METADATA}\n"


def made(folder: Path, base: str = "scratch", **args: str) -> Context:
    """A context of a folder with a Dockerfile and one more file."""
    (folder / "one").mkdir(exist_ok=True)
    (folder / "one" / "Dockerfile").write_text(DOCKERFILE)
    (folder / "one" / "file").write_text("content")
    return context("rig/x:1", ImageBuild(template="one", base=base, args=args), folder)


def test_the_same_inputs_are_the_same_and_any_other_is_not(tmp_path: Path) -> None:
    first = made(tmp_path)
    assert made(tmp_path).inputs == first.inputs
    assert made(tmp_path).tar() == first.tar()
    others = {made(tmp_path, "other:1").inputs, made(tmp_path, VERSION="1").inputs}
    (tmp_path / "one" / "more").write_text("")
    others.add(made(tmp_path).inputs)
    (tmp_path / "one" / "more").chmod(0o755)
    others.add(made(tmp_path).inputs)
    assert len(others) == 4 and first.inputs not in others


def test_a_build_gets_the_folder_and_what_the_image_says_of_itself(tmp_path: Path) -> None:
    one = made(tmp_path, VERSION="1")
    with tarfile.open(fileobj=io.BytesIO(one.tar())) as tar:
        assert tar.getnames() == ["Dockerfile", "file", METADATA]
        file = tar.extractfile(METADATA)
        assert file is not None
        said = yaml.safe_load(file.read())
    assert said["inputs"] == one.inputs and said["image"] == "rig/x:1"
    assert said["files"]["file"] == hashlib.sha256(b"content").hexdigest()
    assert said["build_args"] == {"BASE": "scratch", "VERSION": "1"}


def test_node_reads_the_label_that_a_build_sets() -> None:
    assert INPUTS_LABEL == LABEL


@pytest.mark.parametrize("name", sorted(path.parent.name for path in FOLDER.glob("*/Dockerfile")))
def test_every_template_can_be_read(name: str) -> None:
    assert context("rig/x:1", ImageBuild(template=name, base="scratch")).inputs


def test_what_cannot_be_built_is_refused_in_one_line(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(SpecError, match="no nosuch/Dockerfile in templates/image; allowed: one"):
        context("rig/x:1", ImageBuild(template="nosuch", base="scratch"), tmp_path)
    (tmp_path / "one" / "link").symlink_to("/etc/passwd")
    with pytest.raises(SpecError, match="is a link"):
        context("rig/x:1", ImageBuild(template="one", base="scratch"), tmp_path)
    (tmp_path / "one" / "link").unlink()
    (tmp_path / "one" / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(SpecError, match="could not say what it holds"):
        context("rig/x:1", ImageBuild(template="one", base="scratch"), tmp_path)


def test_a_name_by_digest_cannot_be_built() -> None:
    build = {"template": "layered", "base": "scratch"}
    with pytest.raises(ValueError, match="with an image by digest"):
        ContainerSpec.model_validate({"image": "x@sha256:" + "a" * 64, "build": build})
    assert ContainerSpec.model_validate({"image": "x:1", "build": build}).build is not None
