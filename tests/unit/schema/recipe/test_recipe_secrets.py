"""A recipe names where its secrets are; a value in it is refused, and not quoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schema.core.errors import SpecError
from schema.inputs.load import recipe
from tests.unit.builders.spark_rig import changed, project, tiny

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
