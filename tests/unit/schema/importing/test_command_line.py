"""`python -m schema.importing`: what it prints and writes, and the loader's word."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from schema.core.errors import SpecError
from schema.importing.__main__ import main
from schema.inputs.load import recipe
from tests.unit.schema.importing.test_made import MADE

EUGR = {**MADE["all"]["eugr"], "mods": ["mods/fix-it"]}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, with a neighbour's checkout beside it; its root is the current folder."""
    put(tmp_path / "checkout" / "recipes" / "Small-1.0.yaml")
    project = tmp_path / "project"
    (project / "catalog" / "recipes").mkdir(parents=True)
    monkeypatch.chdir(project)
    return project


def put(path: Path) -> None:
    """The neighbour's recipe at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(EUGR, sort_keys=False))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command in the current folder."""
    status = main(list(arguments), Path.cwd())
    done = capsys.readouterr()
    return status, done.out, done.err


def test_it_prints_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "../checkout/recipes/Small-1.0.yaml")
    assert status == 0
    assert out.startswith(
        "# from ../checkout/recipes/Small-1.0.yaml, a recipe of eugr's run-recipe"
    )
    assert yaml.safe_load(out)["container"]["image"] == "vllm-node"
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_what_changes_the_image_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "../checkout/recipes/Small-1.0.yaml", "--write")
    assert status == 0 and out.startswith("wrote catalog/recipes/Small-1.0.yaml\nneeds you: ")
    assert "needs you: mods/fix-it: its run.sh changes the image: build one with it by hand" in out
    assert recipe("Small-1.0", root).served_model_name == "owner/Small"


def test_the_loader_names_the_command_and_it_works(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(root / "catalog" / "recipes" / "theirs.yaml")
    with pytest.raises(SpecError) as caught:
        recipe("theirs", root)
    said = str(caught.value)
    assert said.startswith(
        "catalog/recipes/theirs.yaml: is a recipe of eugr's run-recipe.py; allow"
    )
    command = shlex.split(said.split("`")[1])
    assert command[:3] == ["python", "-m", "schema.importing"]
    assert run(capsys, *command[3:])[0] == 0
    assert recipe("theirs", root).served_model_name == "owner/Small"
    kept = root / "catalog" / "recipes" / "theirs.yaml.original"
    assert yaml.safe_load(kept.read_text()) == EUGR


@pytest.mark.parametrize("more", ["container: other\n", "a: &a {}\nb: *a\n"])
def test_the_loader_knows_one_that_it_cannot_read(root: Path, more: str) -> None:
    file = root / "catalog" / "recipes" / "theirs.yaml"
    put(file)
    file.write_text(file.read_text() + more)
    with pytest.raises(SpecError, match=r"is a recipe of eugr's run-recipe\.py; allowed: "):
        recipe("theirs", root)


def test_nothing_is_written_over(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = root / "catalog" / "recipes" / "Small-1.0.yaml"
    target.write_text("mine: 1\n")
    status, _, errors = run(capsys, "../checkout/recipes/Small-1.0.yaml", "--write")
    assert status == 1
    assert errors == "catalog/recipes/Small-1.0.yaml: is there already; allowed: --name OTHER\n"
    assert target.read_text() == "mine: 1\n"
    assert run(capsys, "../checkout/recipes/Small-1.0.yaml", "--write", "--name", "other")[0] == 0
    assert recipe("other", root).default_profile == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "x.yaml: while parsing a flow node"),
        ("- a", "x.yaml: is ['a']; allowed: a recipe, a map of keys and values"),
        ("a: 1", "x.yaml: is no recipe of eugr's run-recipe.py or of sparkrun"),
        ("#" * 300_000, "x.yaml: is 300000 bytes; allowed: 262144 or fewer"),
        (None, "x.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_read(
    root: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    if text is not None:
        (root / "x.yaml").write_text(text)
    status, out, errors = run(capsys, "x.yaml")
    assert (status, out, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(said)


def test_a_key_that_stands_twice_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `container` in eugr's recipes/nemotron-3-super-nvfp4.yaml; an anchor is followed."""
    put(root / "x.yaml")
    (root / "x.yaml").write_text((root / "x.yaml").read_text() + "container: &c other\n")
    out = run(capsys, "x.yaml")[1]
    assert "# needs you: container stands twice in the file; the last one counts" in out
    assert yaml.safe_load(out)["container"]["image"] == "other"
