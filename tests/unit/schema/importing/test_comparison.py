"""tests/importing.py, which says how many recipes render the same: what it takes for the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.importing import main, meaning, theirs
from tests.unit.builders.spark_rig import project, spark_plan
from tests.unit.schema.importing.test_command_line import EUGR, run
from tests.unit.schema.importing.test_made import MADE


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
    assert theirs({**EUGR, "command": command}) == ["a", "--x", "it's 8000", "*", "--y", "a b"]
    with pytest.raises(ValueError, match="is a shell script"):
        theirs({**EUGR, "command": "vllm serve a; touch CANARY"})


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
