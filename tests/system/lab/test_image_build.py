"""image with build=true on two booted hosts: real docker builds, no registry, no second build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.lab.support import moving as m
from tests.system.rehearsal import ROOT, Lab

IMAGE = "rigbook/built:1"
RECIPE = ROOT / "tests/system/lab/recipes/built-image.yaml"
SEED = "Bring the image to one node"
CLEAR = (
    "for name in rigbook/built rigbook-kept; do sudo docker images -q $name | sort -u | "
    "xargs -r sudo docker rmi -f >/dev/null 2>&1; done; "
    # the classic builder keeps an image for each step
    "sudo docker image prune -f >/dev/null"
)


def words(folder: Path, base: str = "scratch") -> tuple[str, ...]:
    """The arguments for a recipe whose image stands on `base`."""
    text = RECIPE.read_text().replace("base: scratch", f"base: {base}")
    (folder / "built.yaml").write_text(text)
    return ("--data", "recipe=built", "--data", f"recipes_dir={folder}", "--data", "build=true")


@pytest.fixture
def bare(lab: Lab) -> Iterator[Lab]:
    """No host has the image, nor a change that is open."""
    m.clear(lab)
    for host in lab.hosts:
        lab.ssh(host, CLEAR)
    yield lab
    m.clear(lab)
    for host in lab.hosts:
        lab.ssh(host, CLEAR)


def told(lab: Lab, host: str) -> str:
    """What the image on a host says of itself, read out of it without running it."""
    return lab.ssh(
        host,
        f"id=$(sudo docker create {IMAGE} none); sudo docker cp $id:/build-metadata.yaml - | "
        "tar -xO; sudo docker rm $id >/dev/null",
    )


def test_it_is_built_once_and_is_the_same_on_both(bare: Lab, tmp_path: Path) -> None:
    arguments = words(tmp_path)
    dry = bare.pyinfra("image", *arguments, "--dry", yes=False)
    assert (
        "docker build of layered on scratch" in dry.text and m.image_id(bare, "test1", IMAGE) == ""
    )
    done = bare.pyinfra("image", *arguments)
    assert done.rc == 0 and "Step 1/" in done.text, done.text
    made = m.image_id(bare, "test1", IMAGE)
    assert made and m.image_id(bare, "test2", IMAGE) == made
    assert [bare.changes(host)[0]["status"] for host in bare.hosts] == ["COMMITTED", "COMMITTED"]
    assert "built_by: rigbook" in told(bare, "test2") and 'BASE: "scratch"' in told(bare, "test2")
    again = bare.pyinfra("image", *arguments)
    assert again.rc == 0 and again.counts("Grand total")[1:] == ("-", "-", "7"), again.text
    assert "test1, test2 has them" in again.text


def test_other_inputs_are_built_anew_and_the_former_image_is_kept(
    bare: Lab, tmp_path: Path
) -> None:
    """On an image that only the building node has: no registry is asked."""
    assert bare.pyinfra("image", *words(tmp_path)).rc == 0
    former = m.image_id(bare, "test2", IMAGE)
    m.make_image(bare, "test1", 1_000_000)
    done = bare.pyinfra("image", *words(tmp_path, m.IMAGE))
    assert done.rc == 0 and done.counts(SEED)[1] == "1", done.text
    made = m.image_id(bare, "test2", IMAGE)
    assert made == m.image_id(bare, "test1", IMAGE) != former
    for host in bare.hosts:
        assert m.image_id(bare, host, f"rigbook-kept:{former[7:19]}") == former


def test_a_base_that_is_not_there_is_named_and_no_tag_is_touched(bare: Lab, tmp_path: Path) -> None:
    """docker would go and pull whatever the tag means today."""
    assert bare.pyinfra("image", *words(tmp_path)).rc == 0
    former = m.image_id(bare, "test1", IMAGE)
    done = bare.pyinfra("image", *words(tmp_path, "rigbook/nosuch:1"))
    assert done.rc == 1 and "Traceback" not in done.text, done.text
    assert "the base rigbook/nosuch:1 is not on it" in done.text
    assert {m.image_id(bare, host, IMAGE) for host in bare.hosts} == {former}
