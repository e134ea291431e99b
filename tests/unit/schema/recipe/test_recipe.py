"""A command line as flags, and flags as a command line: the same words to vLLM both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from schema.core import SpecError, flag_name
from schema.load import plan, profile_name, recipe
from schema.recipe import Recipe
from schema.vllm import SHORT as vllm_SHORT
from schema.vllm import fill, flag_arguments, flags_of
from tests.unit.builders.rigs import ROOT, changed, host, project, spark_plan, tiny


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["a/b"], {"model": "a/b"}),
        (["--model", "a/b"], {"model": "a/b"}),
        (["a/b", "-tp", "2", "-ep"], {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
        (["a/b", "--a-b", "1", "--c_d=x"], {"a_b": 1, "c_d": "x"}),
        (["a/b", "--no-a-b", "--x"], {"a_b": False, "x": True}),
        (["a/b", "--x", "-1", "--y", "0.5"], {"x": -1, "y": 0.5}),
        (["a/b", "-O3"], {"optimization_level": 3}),
        (["a/b", "--x", "0.80", "--y", "007"], {"x": "0.80", "y": "007"}),
        (["a/b", "--x", "1", "two"], {"x": [1, "two"]}),
        (["a/b", "--x", '{"a": {"b": [1, null]}}'], {"x": {"a": {"b": [1, None]}}}),
        (["a/b", "--x", "{a}"], {"x": "{{a}}"}),
        (["a/b", "--x.y_z", "true", "-cc.mode=3"], {"x.y_z": True, "compilation_config.mode": 3}),
        (["a/b", "--x", "true"], {"x": "true"}),
        (["a/b", "--x=a=b"], {"x": "a=b"}),
    ],
)
def test_words_become_flags_and_flags_the_words(
    words: list[str], flags: dict[str, JsonValue]
) -> None:
    found, twice = flags_of(words)
    assert (found, twice) == ({"model": "a/b", **flags}, [])
    rendered = [
        word
        for name, value in found.items()
        for word in flag_arguments(name, value, lambda text: fill(text, {}, "x"))
    ]
    assert flags_of(rendered) == (found, [])


def test_of_two_the_last_one_counts() -> None:
    assert flags_of(["a/b", "-tp", "1", "--tensor-parallel-size", "2"]) == (
        {"model": "a/b", "tensor_parallel_size": 2},
        ["tensor_parallel_size"],
    )


@pytest.mark.parametrize(
    "words", [["a/b", "-zz"], ["a/b", "--"], ["a/b", "c"], ["--model", "a", "b"]]
)
def test_words_that_no_flag_takes(words: list[str]) -> None:
    with pytest.raises(ValueError, match="; allowed: "):
        flags_of(words)


def test_short_names_are_of_long_ones() -> None:
    assert len(set(vllm_SHORT.values())) == len(vllm_SHORT)
    assert all(short.startswith("-") and not short.startswith("--") for short in vllm_SHORT)


# How a vllm_serve value becomes arguments, and what placeholders may stand in it.


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (True, ["--a-b"]),
        (False, ["--no-a-b"]),
        (None, []),
        (0, ["--a-b", "0"]),
        (-1, ["--a-b", "-1"]),
        (0.9, ["--a-b", "0.9"]),
        ("text", ["--a-b", "text"]),
        (["x", 2], ["--a-b", "x", "2"]),
        ({"z": [1, None], "a": {"b": True}}, ["--a-b", '{"z":[1,null],"a":{"b":true}}']),
        ({}, ["--a-b", "{}"]),
        ({"é": "line\nbreak"}, ["--a-b", '{"é":"line\\nbreak"}']),
    ],
)
def test_value_to_arguments(value: JsonValue, arguments: list[str]) -> None:
    assert flag_arguments("a_b", value, str) == arguments


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("a_b.c_d", "x", ["--a-b.c_d", "x"]),
        ("a_b.c.d", True, ["--a-b.c.d", "true"]),
        ("a_b.c", False, ["--a-b.c", "false"]),
        ("a_b.c+", 3, ["--a-b.c+", "3"]),
        ("a_b.c", None, []),
        ("a_b.c", {"d": 1}, ["--a-b.c", '{"d":1}']),
    ],
)
def test_one_key_of_a_json_argument(name: str, value: JsonValue, arguments: list[str]) -> None:
    """vLLM's own form, `--compilation-config.cudagraph_mode NONE`."""
    assert flag_arguments(name, value, str) == arguments
    assert flag_name(name) == name


@pytest.mark.parametrize("name", ["a-b", "a.", "a+", ".a", "a..b", "a.b c", "A.b", "a.b++"])
def test_what_is_no_flags_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a flag's name; allowed: "):
        flag_name(name)


def argv_with(tmp_path: Path, path: tuple[str, ...], value: object) -> tuple[str, ...]:
    root = project(tmp_path, changed(path, value))
    return spark_plan(root, recipe="broken").specs["spark2"].argv


def test_placeholders_in_a_flag_and_doubled_braces(tmp_path: Path) -> None:
    argv = argv_with(
        tmp_path,
        ("vllm_serve", "host"),
        "{node.lan_address},{node.fabric_address},{node.name},{node.rank},{fabric.device},{{x}}",
    )
    assert argv[argv.index("--host") + 1] == "192.168.1.12,10.0.0.2,spark2,1,bond0,{x}"


def test_json_is_passed_as_written(tmp_path: Path) -> None:
    argv = argv_with(tmp_path, ("vllm_serve", "hf_overrides"), {"a": "{node.name} {{x}}"})
    assert '{"a":"{node.name} {{x}}"}' in argv


def test_placeholder_without_a_fabric_names_the_key(tmp_path: Path) -> None:
    data = changed(("multi_node",), None)
    root = project(tmp_path, data)
    alone = host(1, recipe="broken", fabric_address=..., fabric_device=...)
    with pytest.raises(
        SpecError, match=r"env\.GLOO_SOCKET_IFNAME: \{fabric\.device\} has no value"
    ):
        plan({"solo": alone}, None, root)


def test_profile_null_drops_a_flag_and_a_new_one_comes_last(tmp_path: Path) -> None:
    argv = argv_with(
        tmp_path,
        ("profiles", "balanced", "vllm_serve"),
        {"enforce_eager": None, "dtype": "bfloat16", "seed": 7},
    )
    assert "--enforce-eager" not in argv
    assert "--no-enforce-eager" not in argv
    assert argv[argv.index("--dtype") + 1] == "bfloat16"
    assert argv.index("--seed") == argv.index("--nnodes") - 2


@pytest.mark.parametrize("nnodes", [3, None])
def test_number_of_nodes_must_be_the_rigs(tmp_path: Path, nnodes: int | None) -> None:
    value = nnodes and {"nnodes": nnodes, "master_port": 29501}
    with pytest.raises(SpecError, match=r"rig spark has 2 \(spark1, spark2\)"):
        argv_with(tmp_path, ("multi_node",), value)


def test_cache_folders_are_the_mounts_below_the_home_without_the_weights() -> None:
    assert spark_plan().specs["spark1"].cache_folders == (
        "/home/milo/.cache",
        "/home/milo/.cache/vllm",
        "/home/milo/.cache/flashinfer",
    )
    assert spark_plan(recipe="tiny").specs["spark1"].cache_folders == ()


# A broken recipe: one line a problem, with file, key, what is wrong and what is allowed.

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


# A recipe names where its secrets are; a value in it is refused, and not quoted.

VALUE = "T0P-S3CRET"
URL = f"https://me:{VALUE}@wheels.example/simple"
VENV = {"path": "/opt/vllm", "pip_args": []}
Keys = tuple[str | int, ...]


def in_venv(pip: str) -> dict[str, Any]:
    """The tiny recipe in a venv, with one argument for pip."""
    data = tiny()
    for key in ("container", "multi_node"):
        data.pop(key, None)
    return {**data, "venv": {**VENV, "pip_args": [pip]}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("api_key", changed(("vllm_serve", "api_key"), VALUE),
     "vllm_serve: api_key would stand in serve.sh and in ps; allowed: secrets: {VLLM_API_KEY:"),
    ("api_keys", changed(("vllm_serve", "api_key"), [VALUE, "x"]), "secrets: {VLLM_API_KEY:"),
    ("api_key of a profile", changed(("profiles", "balanced", "vllm_serve", "api_key"), VALUE),
     "profiles.balanced.vllm_serve: api_key would stand"),
    ("hf_token", changed(("vllm_serve", "hf_token"), VALUE), "secrets: {HF_TOKEN:"),
    ("in JSON", changed(("vllm_serve", "model_loader_extra_config"), {"a": [{"api_key": VALUE}]}),
     "vllm_serve: model_loader_extra_config.a.api_key would stand in serve.sh and in ps"),
    ("url in a flag", changed(("vllm_serve", "otlp_traces_endpoint"), URL),
     "vllm_serve.otlp_traces_endpoint: holds a URL with a user name or password"),
    ("env", changed(("env", "HF_TOKEN"), VALUE),
     "env: HF_TOKEN is a secret by its name; allowed: secrets: {HF_TOKEN: {env: NAME}}"),
    ("env, two lines", changed(("env", "HF_TOKEN"), f"{VALUE}\nx"), "env.HF_TOKEN: holds a "),
    ("env, a number", changed(("env", "HF_TOKEN"), 31337), "env.HF_TOKEN: is a number"),
    ("proxy", changed(("env", "HTTPS_PROXY"), URL), "env.HTTPS_PROXY: holds a URL with a user"),
    ("index-url", in_venv(f"--index-url={URL}"), "venv.pip_args[0]: holds a URL with a user"),
    ("extra-index-url", in_venv(f"--extra-index-url={URL}"), "~/.netrc"),
    ("find-links", in_venv(f"--find-links={URL}"), "pip.conf"),
    ("no pip argument", in_venv(f"--proxy={URL}"), "venv.pip_args[0]: holds a URL with a user"),
    ("two lines for pip", in_venv(f"--index-url={URL}\n"), "venv.pip_args[0]: holds a URL"),
    ("a value", changed(("secrets",), {"HF_TOKEN": VALUE}), "secrets.HF_TOKEN: is text; allowed: "),
    ("a value as a list", changed(("secrets",), {"HF_TOKEN": [VALUE]}), "secrets.HF_TOKEN: is a l"),
    ("an unknown source", changed(("secrets",), {"HF_TOKEN": {"value": "x"}}),
     "secrets.HF_TOKEN: unknown key 'value'; allowed: env, file, node_file"),
    ("no source", changed(("secrets",), {"HF_TOKEN": {}}), "secrets.HF_TOKEN: names no source"),
    ("two sources", changed(("secrets",), {"HF_TOKEN": {"env": "A", "file": "/a"}}),
     "secrets.HF_TOKEN: names env and file; allowed: one of env, file, node_file"),
    ("a value as a name", changed(("secrets",), {"HF_TOKEN": {"env": "hf-x.y"}}),
     "secrets.HF_TOKEN.env: is not a variable's name"),
    ("a relative file", changed(("secrets",), {"HF_TOKEN": {"file": "token"}}),
     "secrets.HF_TOKEN.file: is not a path"),
    ("a name that is told", changed(("secrets",), {"HF_PIN": {"env": "A"}}),
     "secrets: HF_PIN would be told: rigbook reports variables of HF_"),
    ("twice", {**changed(("secrets",), {"FREE": {"env": "A"}}), "env": {"FREE": "1"}},
     "secrets.FREE: stands under env as well; allowed: one of them"),
    ("forbidden", {**changed(("secrets",), {"AUTH": {"env": "A"}}),
                   "forbidden_env": [{"name": "AUTH", "reason": "why not"}]},
     "secrets.AUTH: is forbidden by this recipe: why not"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_value_is_refused_with_the_way_and_not_quoted(
    tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        recipe("broken", project(tmp_path, data))
    assert said in str(caught.value)
    assert VALUE not in str(caught.value) and "31337" not in str(caught.value)
    assert "hf-x.y" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        changed(("vllm_serve", "hf_token"), True),  # the token that the node has stored
        changed(("vllm_serve", "tokenizer"), "/models/tokenizer"),
        changed(("vllm_serve", "override_generation_config"), {"eos_token_id": 2}),
        changed(("env", "TOKENIZERS_PARALLELISM"), "false"),
        changed(("env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"), "1"),
        in_venv("--index-url=https://wheels.example/simple"),
        in_venv("--find-links=/srv/wheels@2026"),
        changed(("secrets",), {"HF_TOKEN": {"file": "~/.cache/huggingface/token"},
                               "VLLM_API_KEY": {"env": "KEY"}, "PIN": {"node_file": "/root/pin"}}),
    ],
)  # fmt: skip
def test_what_only_looks_like_one_is_taken(tmp_path: Path, data: dict[str, Any]) -> None:
    assert recipe("broken", project(tmp_path, data)).name == "broken"


# A recipe of few lines: weights, profiles and the start's budget have defaults.

SHORT: dict[str, Any] = {
    "model": "Small",
    "description": "a model of the hub",
    "container": {"image": "some/vllm:1"},
    "vllm_serve": {"model": "some-owner/Small-1.0"},
}


def loaded(folder: Path, **more: Any) -> Recipe:
    """The short recipe with more keys, as the loader reads it."""
    return recipe("broken", project(folder, {**SHORT, **more}))


def test_the_defaults(tmp_path: Path) -> None:
    short = loaded(tmp_path)
    hub = "~/.cache/huggingface/hub/models--some-owner--Small-1.0"
    assert (short.weights.source, short.weights.path) == ("some-owner/Small-1.0", hub)
    assert short.weights.format == "safetensors"
    assert profile_name(short, None) == "default"
    assert short.profiles["default"].vllm_serve == {}
    assert short.expect.start_budget_s == 1800


def test_the_only_profile_is_the_default_one(tmp_path: Path) -> None:
    one = {"fast": {"description": "one", "vllm_serve": {}}}
    assert loaded(tmp_path, profiles=one).default_profile == "fast"


def test_a_source_of_the_hub_has_its_folder(tmp_path: Path) -> None:
    weights = loaded(tmp_path, weights={"source": "a/b"}).weights
    assert weights.path == "~/.cache/huggingface/hub/models--a--b"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"vllm_serve": {"model": "/models/x"}},
            "weights: is missing; allowed: source and path (a model OWNER/NAME needs neither)",
        ),
        (
            {"profiles": {n: {"description": n, "vllm_serve": {}} for n in ("a", "b")}},
            "default_profile: is ''; allowed: a, b",
        ),
        ({"vllm_serve": 7}, "vllm_serve: is the number 7; allowed: a map of keys and values"),
    ],
)
def test_what_no_default_can_stand_for(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, **more)
    assert str(caught.value) == f"catalog/recipes/broken.yaml: {said}"
