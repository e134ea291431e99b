"""The real vLLM's own argument parser takes every command line that the catalog renders."""

from __future__ import annotations

import json
import shlex

import pytest

from schema.load import plan
from tests.system.rehearsal import ROOT, Lab
from tests.unit.builders.rigs import host

# `vllm serve` adds this parser's arguments to its subcommand; the model is its positional.
PROGRAM = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for argv in json.load(sys.stdin):
    found = vars(parser.parse_args(argv))
    print("PARSED " + json.dumps(found, default=str))
"""


@pytest.fixture(scope="module")
def parsed(lab: Lab) -> dict[tuple[str, str], dict[str, object]]:
    """What vLLM reads from the command line of each (profile, node) of the seed's recipe."""
    wanted = []
    for profile in ("latency", "balanced", "throughput"):
        made = plan(
            {"spark1": host(1, profile=profile), "spark2": host(2, profile=profile)}, None, ROOT
        )
        wanted += [((profile, name), spec.argv[2:]) for name, spec in made.specs.items()]
    lines = shlex.quote(json.dumps([argv for _, argv in wanted]))
    run = (
        "sudo docker run --rm -i --network none -e VLLM_NO_USAGE_STATS=1 "
        "--entrypoint /opt/vllm/bin/python rigbook/vllm-cpu:0.32.0 -c " + shlex.quote(PROGRAM)
    )
    text = lab.ssh("test1", f"printf %s {lines} | {run}")
    answers = [json.loads(x[7:]) for x in text.splitlines() if x.startswith("PARSED ")]
    assert len(answers) == len(wanted)
    return {key: answer for (key, _), answer in zip(wanted, answers, strict=True)}


@pytest.mark.parametrize(
    ("profile", "length", "seqs", "batched", "expert"),
    [
        ("latency", 200000, 4, 16384, False),
        ("balanced", 131072, 8, 16384, True),
        ("throughput", 65536, 16, 8192, True),
    ],
)
def test_the_profiles_mean_what_the_seed_measured(
    parsed: dict[tuple[str, str], dict[str, object]],
    profile: str,
    length: int,
    seqs: int,
    batched: int,
    expert: bool,
) -> None:
    for node in ("spark1", "spark2"):
        found = parsed[profile, node]
        assert found["max_model_len"] == length
        assert found["max_num_seqs"] == seqs
        assert found["max_num_batched_tokens"] == batched
        assert bool(found["enable_expert_parallel"]) is expert


def test_json_arguments_arrive_whole(parsed: dict[tuple[str, str], dict[str, object]]) -> None:
    found = parsed["balanced", "spark1"]
    assert "FULL_AND_PIECEWISE" in str(found["compilation_config"])
    assert found["speculative_config"] == {"method": "deepseek_mtp", "num_speculative_tokens": 2}
    assert found["default_chat_template_kwargs"] == {"thinking": True}


def test_the_nodes_differ_in_rank_and_headless_only(
    parsed: dict[tuple[str, str], dict[str, object]],
) -> None:
    head, worker = parsed["balanced", "spark1"], parsed["balanced", "spark2"]
    differ = {key for key in head if head[key] != worker[key]}
    assert differ == {"node_rank", "headless"}
    assert (head["node_rank"], worker["node_rank"]) == (0, 1)
    assert (head["headless"], worker["headless"]) == (False, True)
