"""What vLLM's own parser said becomes a finding: a refusal blocks, silence is told."""

from __future__ import annotations

import pytest

from gates.engine.arguments import arguments
from schema.observed.artifact import ParserAnswer
from tests.unit.builders.spark_rig import spark_plan

# Words of vLLM 0.32.0 (CPU), by node/engine/parser_check.py; the third is of
# eugr/spark-vllm-docker#111.
LENGTH = (
    "1 validation error for ModelConfig Value error, User-specified max_model_len (100000) is "
    "greater than the derived max_model_len (max_position_embeddings=2048.0 or "
    "model_max_length=None in model's config.json)."
)
JSON = (
    r"argument --speculative-config: Value \{\"method\":\"qwen3_next_mtp\"\,"
    r"\"num_speculative_tokens\":2\} cannot be converted to <function loads at 0xe67c60da6a20>."
)
NO_GPU = "RuntimeError: Failed to infer device type"


@pytest.mark.parametrize(
    ("outcome", "said", "unsure", "code", "words"),
    [
        ("accepted", "", "", None, ""),
        ("refused", "unrecognized arguments: --no-such-flag", "", "arguments-refused", "itself"),
        (
            "unreadable",
            "milo cannot read /m/x",
            "",
            "weights-denied",
            "user cannot read the weights",
        ),
        ("refused", LENGTH, "", "arguments-refused", "itself refuses"),
        ("refused", JSON, "", "arguments-refused", "itself refuses"),
        ("unchecked", NO_GPU, "", "arguments-unchecked", "the command line could not be checked"),
        ("accepted", "", NO_GPU, "arguments-unchecked", "the model's config could not be checked"),
    ],
)
def test_each_answer_is_one_finding_or_none(
    outcome: str, said: str, unsure: str, code: str | None, words: str
) -> None:
    answer = {"outcome": outcome, "said": said, "unsure": unsure, "took_s": 8.2}
    found = arguments(spark_plan(), "serve", {"spark2": ParserAnswer.model_validate(answer)})
    assert [v.code for v in found] == ([code] if code else [])
    for v in found:
        assert (v.node, v.severity) == ("spark2", "warn" if "unchecked" in str(code) else "block")
        assert words in v.summary and (said or unsure)[:80] in v.summary
        assert (said or unsure) in v.evidence and "8.2 s" in v.evidence
        assert "pyinfra INVENTORY deploys/serve.py --dry" in v.remedy
