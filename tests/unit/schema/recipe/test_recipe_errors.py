"""A broken recipe: one line a problem, with file, key, what is wrong and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from schema.core.errors import SpecError
from schema.inputs.load import recipe
from tests.unit.builders.spark_rig import ROOT, changed, project, tiny

FILE = "catalog/recipes/broken.yaml: "


def error_of(tmp_path: Path, content: str | dict[str, object]) -> str:
    """The error that loading this recipe gives."""
    with pytest.raises(SpecError) as caught:
        recipe("broken", project(tmp_path, content))
    return str(caught.value)


VALUES: list[tuple[tuple[str | int, ...], object, str]] = [
    (("containr",), {}, "unknown key 'containr'; did you mean container?; allowed: container, def"),
    (("name",), "x", "unknown key 'name'; allowed: container, default_profile"),
    (("model",), None, "model: is empty (null); allowed: text"),
    (("model",), 7, "model: is the number 7; allowed: text (put it in quotes)"),
    (("container",), "x", "container: is the text 'x'; allowed: a map of keys and values"),
    (
        ("container", "imgae"),
        "x",
        "container: unknown key 'imgae'; did you mean image?; allowed: gpus, ",
    ),
    (("container", "network"), "bridge", "container.network: an engine is always on"),
    (("weights", "total_bytes"), 1, "weights.total_bytes: nothing reads it; leave it out"),
    (("container", "shm_size"), "1T", "container.shm_size: '1T' is not a size; allowed: a whole"),
    (("container", "privileged"), "no", "container.privileged: is the text 'no'; allowed: true or"),
    (
        ("container", "volumes", 0, "mode"),
        "ro",
        "container.volumes[0]: unknown key 'mode'; allowed: read_only, source, target",
    ),
    (("container", "volumes", 0, "target"), "/a:b", "container.volumes[0].target: '/a:b' holds a"),
    (("container", "volumes", 0, "source"), "~x/y", "container.volumes[0].source: '~x/y' is not a"),
    (("weights", "path"), "/a/../b", "weights.path: '/a/../b' is not an absolute path; allowed:"),
    (("env", "A"), 1, "env.A: is the number 1; allowed: text (put it in quotes)"),
    (("env", "A"), True, "env.A: is true; allowed: text (put it in quotes)"),
    (("env", "A-B"), "1", "env.A-B: 'A-B' is not a variable's name; allowed: letters, digits"),
    (("env", "A"), "{node.ip}", "env.A: '{node.ip}' holds {node.ip}; allowed: {node.lan_address}"),
    (("env", "A"), '{"a":1}', "and {{ or }} for a brace itself"),
    (("env", "A"), "a{b", "and {{ or }} for a brace itself"),
    (("env", "A"), "{}", "and {{ or }} for a brace itself"),
    (
        ("env", "VLLM_WORKER_MULTIPROC_METHOD"),
        "fork",
        "env.VLLM_WORKER_MULTIPROC_METHOD: is forbidden by this recipe: the engine dies at start",
    ),
    (("expect", "rdma"), "required", "expect.rdma: without env.NCCL_DEBUG: INFO; allowed: with it"),
    (("expect", "rdma"), True, "expect.rdma: is True; allowed: 'required' or 'wanted'"),
    (("vllm_serve", "max-num-seqs"), 4, "vllm_serve.max-num-seqs: 'max-num-seqs' is not a flag's"),
    (("vllm_serve", "host"), "-x", "vllm_serve.host: '-x' is empty or starts with `-`; allowed:"),
    (("vllm_serve", "host"), [], "vllm_serve.host: is an empty list; allowed: one value or more"),
    (("vllm_serve", "host"), [True], "vllm_serve.host: holds a list with something else than"),
    (("vllm_serve", "host"), [None], "vllm_serve.host: holds a list with something else than"),
    (("vllm_serve", "headless"), True, "vllm_serve: sets headless; allowed: any other flag"),
    (("vllm_serve", "port"), "8000", "vllm_serve.port: is '8000'; allowed: a number from 1 to 655"),
    (("vllm_serve", "port"), 0, "vllm_serve.port: is 0; allowed: a number from 1 to 65535"),
    (("vllm_serve", "model"), None, "vllm_serve.model: is missing; allowed: the model's path"),
    (("vllm_serve",), [1], "vllm_serve: is a list; allowed: a map of keys and values"),
    (("vllm_serve", "seed"), float("nan"), "vllm_serve: holds a value that is no plain data"),
    (
        ("profiles", "balanced", "vllm_serve", "port"),
        9000,
        "profiles.balanced.vllm_serve: sets port; allowed: any other flag",
    ),
    (("profiles", "balanced", "flags"), {}, "profiles.balanced: unknown key 'flags'; allowed: d"),
    (("profiles",), {}, "profiles: has too few entries; allowed: 1 or more"),
    (
        ("weights",),
        {"source": "by hand"},
        "weights.path: '' is not a path on a node; allowed: /a/p",
    ),
    (("weights",), {"source": 7}, "weights.source: is the number 7; allowed: text"),
    (("default_profile",), "fast", "default_profile: is 'fast'; allowed: balanced, latency, thro"),
    (("multi_node", "nnodes"), 1, "multi_node.nnodes: is 1; allowed: 2 or more"),
    (("multi_node", "nnodes"), "2", "multi_node.nnodes: is the text '2'; allowed: a whole number"),
    (("multi_node", "nnodes"), True, "multi_node.nnodes: is true; allowed: a whole number"),
    (("expect", "start_budget_s"), 9000, "expect.start_budget_s: is 9000; allowed: 7200 or less"),
    (
        ("expect", "baselines"),
        [{"profile": "fast", "concurrency": 1, "tokens_per_s": 1}],
        "expect.baselines: profile 'fast' is unknown; allowed: balanced, latency, throughput",
    ),
    (
        ("expect", "baselines"),
        [{"profile": "latency", "concurrency": 1, "tokens_per_s": 0}],
        "expect.baselines[0].tokens_per_s: is 0; allowed: more than 0",
    ),
]


@pytest.mark.parametrize(("path", "value", "said"), VALUES)
def test_wrong_value(tmp_path: Path, path: tuple[str | int, ...], value: object, said: str) -> None:
    message = error_of(tmp_path, changed(path, value))
    assert message.count("\n") == 0
    assert message.startswith(FILE)
    assert said in message
    assert "pydantic" not in message.lower()
    assert "Value error" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; allowed: a map of keys and values"),
        ("- a", "is a list; allowed: a map"),
        ("a: [", "line 1, column "),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' is given twice; allowed: each key once"),
        ("env:\n  A: x\n  A: y", "line 3, column 3: key 'A' is given twice"),
        ("1: x", "line 1, column 1: key 1 is not text; allowed: text (put it in quotes)"),
        ("on: x", "key True is not text"),
        ("a: &x 1\nb: *x", "line 2, column 4: an alias (*name); allowed: values written out"),
        ("!!python/object/apply:os.system [touch CANARY]", "could not determine a constructor"),
        ("a: !!int x", "invalid literal"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: \x00", "special characters are not allowed"),
        ('a: "\\ud800"', "not valid Unicode"),
        ("a: " + "[" * 3000, "is nested too deeply"),
        ("#" * 300_000, "is 300000 bytes; allowed: YAML of 262144 or fewer"),
    ],
)
def test_not_even_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    message = error_of(tmp_path, text)
    assert message.startswith(FILE)
    assert said in message
    assert "\n" not in message
    assert not (tmp_path / "CANARY").exists()


def test_not_utf8(tmp_path: Path) -> None:
    root = project(tmp_path, "")
    (root / "catalog/recipes/broken.yaml").write_bytes(b"model: \xff\n")
    with pytest.raises(SpecError, match="is not UTF-8 text"):
        recipe("broken", root)


def test_all_problems_at_once(tmp_path: Path) -> None:
    data = {**tiny(), "modle": "x", "model": 1}
    lines = error_of(tmp_path, data).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(FILE) for line in lines)


@pytest.mark.parametrize(
    "name", ["../tiny", "/etc/passwd", "tiny.yaml/..", "..", ".hidden", "a/b", "-tiny", "", "a\nb"]
)
def test_recipe_name_is_no_path(name: str) -> None:
    with pytest.raises(SpecError, match="is not a plain name"):
        recipe(name, ROOT)


def test_missing_recipe_lists_those_that_exist() -> None:
    with pytest.raises(SpecError) as caught:
        recipe("tyny", ROOT)
    assert str(caught.value) == (
        "catalog/recipes: unknown recipe 'tyny'; did you mean tiny?; "
        "allowed: deepseek-v4-flash, qwen3.6-27b, tiny, tiny-venv"
    )


def test_recipe_from_a_further_folder() -> None:
    assert recipe("broken", ROOT, ["tests/system/lab/recipes"]).name == "broken"
    with pytest.raises(SpecError, match="allowed: absent-image, broken, deepseek-v4-flash, mute, "):
        recipe("nope", ROOT, ["tests/system/lab/recipes"])
    with pytest.raises(SpecError, match="recipes_dir: nowhere: is not a folder"):
        recipe("tiny", ROOT, ["nowhere"])


def test_one_name_in_two_folders_is_refused(tmp_path: Path) -> None:
    root = project(tmp_path, tiny())
    (root / "more").mkdir()
    (root / "more/broken.yaml").write_text("{}")
    with pytest.raises(SpecError, match=r"stands twice: catalog/recipes/broken\.yaml and more/"):
        recipe("broken", root, ["more"])
