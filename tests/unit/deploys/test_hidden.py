"""A variable that a unit or a command line sets: its value goes by its name alone."""

from __future__ import annotations

import pytest

from deploys.procedures.engine import hidden

WORD = "Sw0rdf1shSw0rdf1sh"


@pytest.mark.parametrize("line", [
    f"Environment=LITELLM_AUTH={WORD}", f'Environment="LITELLM_AUTH=two {WORD}"',
    f"Environment=MY_KEY='{WORD}'", f"/usr/bin/docker run -e OPENAI_KEY={WORD} image",
    f"MY_KEY=\"a {WORD}\"",
])  # fmt: skip
def test_its_value_is_masked(line: str) -> None:
    told = hidden.text(line, [])
    assert WORD not in told and "***" in told


@pytest.mark.parametrize("line", [
    "Environment=TOKENIZERS_PARALLELISM=false", "Environment=HF_TOKEN_PATH=/root/.token",
    "Environment=NCCL_SOCKET_IFNAME=bond0", "ExecStart=/usr/bin/vllm serve --max-num-seqs 6",
])  # fmt: skip
def test_what_is_none_stays(line: str) -> None:
    assert hidden.text(line, []) == line
