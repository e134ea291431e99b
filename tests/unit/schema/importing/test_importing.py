"""Neighbours' recipes, shape by shape (cases/): what they become, and what is told."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from schema.core import SpecError
from schema.importing import imported, text
from schema.importing import main as importing_main
from schema.load import recipe
from tests.importing import compared, environ, main, meaning, ours
from tests.importing import theirs as importing_theirs
from tests.unit.builders.rigs import project, spark_plan

FOLDER = Path(__file__).parent / "cases"
MADE, MORE = (yaml.safe_load((FOLDER / f"{n}.yaml").read_text()) for n in ("made", "refused"))
CASES = [*MADE["cases"], *MORE["cases"]]
TAKEN = [case for case in CASES if "refused" not in case]
REFUSED = [case for case in CASES if "refused" in case]
FILE = Path("small.yaml")


def theirs(case: dict[str, Any]) -> dict[str, Any]:
    """The neighbour's recipe of a case; a key that the case sets to null is not in it."""
    [(launcher, changes)] = [(k, case[k]) for k in ("eugr", "sparkrun") if k in case]
    data = {**MADE["all"][launcher], **changes}
    return {key: value for key, value in data.items() if value is not None or key == "container"}


def at(data: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none. A key itself may hold dots."""
    if not isinstance(data, dict) or path in data:
        return data.get(path) if isinstance(data, dict) else None
    head, _, rest = path.partition(".")
    return at(data.get(head), rest) if rest else None


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case["case"])
def test_it_is_taken_over(case: dict[str, Any], tmp_path: Path) -> None:
    data = theirs(case)
    made = imported(data, FILE, "small")
    written = text(made, str(FILE))
    loaded = recipe("small", project(tmp_path, written, "small"))
    assert loaded == made.recipe()
    assert " ".join(ours(loaded)) == case["argv"]
    assert [line.split(": ")[0] for line in compared(data, FILE)] == case.get("differ", [])
    for path, value in case.get("has", {}).items():
        assert at(made.data, path) == value, path
    for name, value in case.get("environ", {}).items():
        assert environ(loaded)[name] == value
    for kind, lines in (("needs", made.needs), ("left", made.left)):
        for words in case.get(kind, []):
            assert any(words in line for line in lines), (words, lines)
    assert written.count("# needs you: ") == len(made.needs)
    assert written.count("# left out: ") == len(made.left)
    assert case.get("never", "s3cret") not in written


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["case"])
def test_it_is_refused_in_one_line(case: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        imported(theirs(case), FILE, "small")
    assert str(caught.value).startswith(case["refused"])
    assert "\n" not in str(caught.value)
    assert case.get("never", "s3cret") not in str(caught.value)


def test_each_case_names_where_its_shape_was_seen() -> None:
    assert all(case["like"] for case in CASES)
    assert len({case["case"] for case in CASES}) == len(CASES)


# `python -m schema.importing`: what it prints and writes, and the loader's word.

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
    status = importing_main(list(arguments), Path.cwd())
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


# tests/importing.py, which says how many recipes render the same: what it takes for the same.


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("m -tp 2 --a_b=1", "m --a-b 1 --tensor-parallel-size 2", True),
        ('m --a {"b":1,"c":2}', 'm --a {"c":2,"b":1}', True),
        ("m --a.b 1 --a.c.d x", 'm --a {"b":1,"c":{"d":"x"}}', True),
        ("m --a 1 --a 2", "m --a 2", True),
        ("m --a 1", "m --a 2", False),
        ("m --a", "m", False),
        ("m --a", "m --no-a", False),
        ("m --a 1 2", "m --a 2 1", False),
        ("m --a 0.80", "m --a 0.8", False),
        ("m", "n", False),
    ],
)
def test_what_vllm_takes_for_the_same(one: str, other: str, same: bool) -> None:
    assert (meaning(one.split()) == meaning(other.split())) is same


def test_the_launchers_line_is_what_bash_makes_of_it() -> None:
    command = "vllm serve a \\\n  --x \"it's {port}\" '*' \\\n\n  --y a\\ b # --z\n"
    assert importing_theirs({**EUGR, "command": command}) == [
        "a",
        "--x",
        "it's 8000",
        "*",
        "--y",
        "a b",
    ]
    with pytest.raises(ValueError, match="is a shell script"):
        importing_theirs({**EUGR, "command": "vllm serve a; touch CANARY"})


def test_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparkrun = MADE["all"]["sparkrun"]
    found = {
        "good": EUGR,
        "engine": {**sparkrun, "runtime": "sglang"},
        "script": {**sparkrun, "command": "exec vllm serve x"},
        "key": {**sparkrun, "command": "vllm serve {model} --api-key abc"},
        "none-of-them": {"on": "push"},
    }
    for name, data in found.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(data))
    (tmp_path / "no.yaml").write_text("a: [")
    assert main([str(tmp_path)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == (
        "2 of 3 vLLM recipes load, 1 render the same command line; 1 start another engine"
    )
    assert [line.split(": ")[0] for line in lines] == ["differs", "passed over", "refused"]
    assert lines[0].endswith("key.yaml: api_key: theirs ***, ours None")


def test_an_imported_recipe_reaches_the_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docker reads on both nodes of a pair: the flags, and JSON in a variable as it was."""
    file = tmp_path / "pair.yaml"
    env = {"SETTING": '{"a":{"b":1}}'}
    data = {**EUGR, "mods": [], "env": env, "defaults": {**EUGR["defaults"], "tensor_parallel": 2}}
    file.write_text(yaml.safe_dump(data))
    root = project(tmp_path / "project", run(capsys, str(file))[1], "pair")
    made = spark_plan(root, recipe="pair")
    for node, rank in (("spark1", "0"), ("spark2", "1")):
        script, environment, unit = (document.content for document in made.documents[node][:3])
        assert "--tensor-parallel-size 2" in script and f"--node-rank {rank}" in script
        assert 'SETTING={"a":{"b":1}}\n' in environment
        assert f"VLLM_HOST_IP=10.0.0.{int(rank) + 1}\n" in environment
        assert "/home/milo/.cache/huggingface:/root/.cache/huggingface" in unit
        assert made.specs[node].weights == (
            "/home/milo/.cache/huggingface/hub/models--owner--Small"
        )
