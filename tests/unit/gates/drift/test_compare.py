"""Drift: the live engine against its plan, one line a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gates.drift.compare import drift
from gates.engine.vllm_flags import compare, flags_of
from schema.desired.plan import UNIT
from schema.observed.docker import Mount
from schema.observed.snapshot import Unreadable
from schema.render import node_program
from tests.unit.builders import engine_parts as e
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
HEAD, WORKER = PLAN.rig.nodes


def texts(*changes: tuple[str, Any], node: Any = HEAD) -> list[str]:
    """The differences of a serving node with these values changed."""
    seen = f.serving(PLAN)[node.name]
    for path, value in changes:
        seen = f.put(seen, path, value)
    return [difference.text for difference in drift(PLAN, node, seen)]


def argv(*swaps: tuple[str, str], node: Any = HEAD) -> tuple[str, ...]:
    """The node's live command line with texts replaced; an empty one is left out."""
    processes: Any = f.serving(PLAN)[node.name].engine_processes
    tokens = processes[0].argv
    swap = dict(swaps)
    return tuple(swap.get(token, token) for token in tokens if swap.get(token, token))


def live(*swaps: tuple[str, str], node: Any = HEAD) -> list[str]:
    return texts(("engine_processes.0.argv", argv(*swaps, node=node)), node=node)


def test_a_serving_rig_has_no_drift() -> None:
    assert texts() == []
    assert texts(node=WORKER) == []


def test_a_changed_flag() -> None:
    assert live(("131072", "200000")) == ["max_model_len 200000, recipe says 131072"]


def test_the_seeds_hand_relaunch() -> None:
    drifted = live(("131072", "200000"), ("8", "4"), ("--enable-expert-parallel", ""))
    assert drifted == [
        "max_model_len 200000, recipe says 131072",
        "max_num_seqs 4, recipe says 8",
        "enable_expert_parallel not set, recipe says true",
    ]


def test_a_flag_that_the_recipe_does_not_have() -> None:
    assert live(("131072", "131072 ")) == []  # a number is a number
    extra = (*argv(), "--enforce-eager", "--seed=7")
    assert texts(("engine_processes.0.argv", extra)) == [
        "enforce_eager true, recipe says not set",
        "seed 7, recipe says not set",
    ]


def test_a_worker_without_headless() -> None:
    assert live(("--headless", ""), node=WORKER) == ["headless not set, recipe says true"]


def test_json_that_lost_its_quotes_is_named() -> None:
    spec = '{"method":"deepseek_mtp","num_speculative_tokens":2}'
    (line,) = live((spec, "{method:deepseek_mtp,num_speculative_tokens:2}"))
    assert line.startswith("speculative_config {method:deepseek_mtp,num_speculative_tokens:2}")
    assert "lost its JSON quotes" in line
    # bash's brace expansion splits what the quotes held together
    torn = ["serve", "--x", "method:deepseek_mtp", "num_speculative_tokens:2"]
    split = [*compare(["serve", "--x", spec], torn)]
    assert "lost its JSON quotes" in split[0][2]


def test_json_is_compared_by_value() -> None:
    one = ["serve", "m", "--x", '{"a": 1, "b": [2]}', "--y", "0.90", "--no-z"]
    other = ["serve", "m", '--x={"b":[2],"a":1.0}', "--y", "0.9", "--no-z"]
    assert list(compare(one, other)) == []
    other[2] = '--x={"b":[2],"a":2}'
    assert [name for name, _, _ in compare(one, other)] == ["x"]
    assert "lost" not in next(iter(compare(one, other)))[2]


def test_json_that_differs_in_a_type_kept_its_quotes() -> None:
    ((_, _, had),) = compare(["serve", "--x", '{"a":1}'], ["serve", "--x", '{"a":"1"}'])
    assert had == '{"a":"1"}'


def test_flags_of_a_command_line() -> None:
    words = ["python3", "vllm", "serve", "/m", "--a-b", "--no-c", "--d", "x", "-1", "--e=f"]
    assert flags_of(words) == {"model": ("/m",), "a_b": True, "c": False, "d": ("x", "-1"),
                               "e": ("f",)}  # fmt: skip


def test_a_masked_secret_is_not_compared() -> None:
    assert list(compare(["serve", "--api-key", "k"], ["serve", "--api-key", "***"])) == []


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("docker.containers.0.restart_policy", "unless-stopped",
         "container restart policy: unless-stopped (a second supervisor beside systemd), "
         "wanted no"),
        ("docker.containers.0.ipc_mode", "private", "container ipc mode: private, wanted host"),
        ("docker.containers.0.privileged", False, "container privileged: false, wanted true"),
        ("docker.containers.0.init", False, "container init process: false, wanted true"),
        ("units.0.enabled", "disabled", f"unit {UNIT}: disabled, wanted enabled"),
        ("units.0.needs_reload", True,
         f"unit {UNIT}: changed since systemd read it, wanted loaded as on disk"),
        ("units.0.drop_ins", ("/etc/x.conf",),
         f"unit {UNIT}: overridden by /etc/x.conf, wanted no drop-in of others"),
        ("units.0.active_state", "inactive",
         f"unit {UNIT}: inactive, while its container runs, wanted active"),
        ("files.0.kind", "absent", "file /etc/rigbook/engine/serve.sh: absent, wanted a file"),
        ("files.0.mode", "0777",
         "file /etc/rigbook/engine/serve.sh: mode 0777, wanted mode 0755"),
        ("files.1.uid", 1000,
         "file /etc/rigbook/engine/engine.env: owner 1000:0, wanted owner 0:0"),
        ("files.1.gid", 1000,
         "file /etc/rigbook/engine/engine.env: owner 0:1000, wanted owner 0:0"),
    ],
)  # fmt: skip
def test_one_changed_value_is_one_line(path: str, value: Any, text: str) -> None:
    assert texts((path, value)) == [text]


def test_a_file_is_compared_by_its_hash() -> None:
    (line,) = texts(("files.1.sha256", "f" * 64))
    assert line.startswith("file /etc/rigbook/engine/engine.env: sha256 ffffffffffff, wanted")


def test_a_unit_of_a_former_rigbook_is_named_with_both_programs() -> None:
    unit = PLAN.documents[HEAD.name][2]
    former = "/usr/local/lib/rigbook/rignode-0123456789ab.pyz"
    found = e.written_file(replace(unit, content=unit.content.replace(node_program.path(), former)))
    assert texts(("files.2", found)) == [
        f"file {unit.path}: runs {former}, wanted runs {node_program.path()}"
    ]
    edited = e.written_file(replace(unit, content=f"{found.content}# edited\n"))
    assert "sha256" in texts(("files.2", edited))[0]


def test_another_image_of_the_same_tag() -> None:
    (line,) = texts(("docker.containers.0.image_id", "sha256:" + "9" * 64))
    assert line.startswith("image ghcr.io/") and "sha256:999999999999" in line


def test_mounts() -> None:
    mounts = e.container(PLAN, HEAD).mounts
    volume = Mount(source="/var/lib/docker/volumes/x/_data", target="/data", read_only=False)
    assert texts(("docker.containers.0.mounts", (*mounts, volume))) == []
    stray = volume.model_copy(update={"source": "/home/milo/patched"})
    assert texts(("docker.containers.0.mounts", (*mounts[1:], stray))) == [
        "mount /models: none, wanted /home/milo/models (writable)",
        "mount /data: /home/milo/patched (writable), wanted none",
    ]


def test_the_live_environment() -> None:
    environ = {**PLAN.specs[HEAD.name].environ, "OMP_NUM_THREADS": "1"}
    environ.pop("NCCL_IB_HCA")
    assert texts(("docker.containers.0.environ", environ)) == [
        "OMP_NUM_THREADS 1, recipe says 8",
        "NCCL_IB_HCA not set, recipe says rocep1s0f0,rocep1s0f1",
    ]


def test_what_the_host_masks_or_does_not_report_is_not_compared() -> None:
    environ = {**PLAN.specs[HEAD.name].environ, "HF_TOKEN": "secret", "LD_PRELOAD": "x.so"}
    spec = replace(PLAN.specs[HEAD.name], environ=environ)
    plan = replace(PLAN, specs={**PLAN.specs, HEAD.name: spec})
    reported = {**PLAN.specs[HEAD.name].environ, "HF_TOKEN": "***"}
    seen = f.put(f.serving(PLAN)[HEAD.name], "docker.containers.0.environ", reported)
    assert drift(plan, HEAD, seen) == []


def test_a_forbidden_variable_says_why() -> None:
    (line,) = texts(("engine_processes.0.environ", {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}))
    assert line.startswith("VLLM_WORKER_MULTIPROC_METHOD=fork is forbidden: ")
    assert "ShmRingBuffer" in line


@pytest.mark.parametrize("section", ["files", "units", "docker"])
def test_an_unreadable_section_is_a_difference(section: str) -> None:
    lines = texts((section, Unreadable(unreadable="permission denied")))
    assert f"unknown {section}: permission denied, wanted readable" in lines


def test_a_node_without_an_engine_lacks_files_and_unit_only() -> None:
    found = drift(PLAN, HEAD, f.healthy(PLAN)[HEAD.name])
    assert {d.kind for d in found} == {"file", "unit"}
    assert len(found) == 7


def test_a_starting_container_shows_no_command_line_yet() -> None:
    assert texts(("engine_processes", ())) == []


def test_a_short_name_is_the_flag_that_it_stands_for() -> None:
    long = ("vllm", "serve", "/m", "--tensor-parallel-size", "2", "--enable-expert-parallel")
    assert not list(compare(long, ("vllm", "serve", "/m", "-tp", "2", "-ep")))
    assert list(compare(long, ("vllm", "serve", "/m", "-tp", "4", "-ep"))) == [
        ("tensor_parallel_size", "2", "4")]  # fmt: skip
    levels = [("vllm", "serve", "/m", *words) for words in (("-O3",), ("-O=3",), ("-O", "3"))]
    assert not any(list(compare(one, levels[0])) for one in levels)
