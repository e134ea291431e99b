"""The rules that both sides follow: one table each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from node import units
from node.rules import engine, text
from tests.unit.builders.engine_parts import FOREIGN, foreign_container
from tests.unit.builders.host_parts import OUR_PROCESSES, port, unit

SAFETENSORS = (40).to_bytes(8, "little") + b'{"x":{}}'


@pytest.mark.parametrize(("message", "finish", "plain", "thinking"), [
    ({"content": "4"}, "stop", "1 characters", "the reasoning field is empty"),
    ({"content": "4"}, "length", "1 characters", "the reasoning field is empty"),
    ({"content": "4", "reasoning": " "}, "stop", "1 characters", "the reasoning field is empty"),
    ({"content": "4", "reasoning": "2 + 2"}, "stop", "1 characters", "1 characters"),
    ({"content": "4", "reasoning_content": "2 + 2"}, "stop", "1 characters", "1 characters"),
    ({"content": None, "reasoning": "hm"}, "stop", "completion is empty", "completion is empty"),
    ({"content": None, "reasoning": "hm"}, "length", "completion is empty",
     "2 characters of thought"),
    ({"content": "", "reasoning_content": "hm"}, "length", "completion is empty",
     "2 characters of thought"),
    ({"content": ""}, "stop", "completion is empty", "completion is empty"),
    ({"content": " ", "reasoning": " "}, "length", "completion is empty", "completion is empty"),
    ({"content": 7}, "stop", "without a completion", "without a completion"),
    (None, "stop", "without a completion", "without a completion"),
])  # fmt: skip
def test_what_is_an_answer(message: Any, finish: str, plain: str, thinking: str) -> None:
    """Content, and a thought where the recipe says that one must come; or a thought cut short."""
    document = {"model": "tiny", "choices": [{"message": message, "finish_reason": finish}]}
    raw = json.dumps(document).encode()
    for expected, reasoning in ((plain, False), (thinking, True)):
        reply = engine.judge_reply(raw, reasoning)
        assert expected in reply.detail
        assert reply.ok == (" characters" in expected) and reply.final != reply.ok


@pytest.mark.parametrize(("head", "kind"), [
    (b"GGUF\3\0\0\0", "gguf"), (SAFETENSORS, "safetensors"),
    (b"PK\3\4\x14\0\0\0{\0", "a PyTorch zip"), (b"version https://git-lfs", text.POINTER),
    (bytes(16), "empty or zeroes, as an unfinished download leaves it"),
    (b"", "empty or zeroes, as an unfinished download leaves it"),
    (b"<html>ab", "unknown (starts with 3c68746d6c3e6162)"),
    ((1 << 40).to_bytes(8, "little") + b"{", "unknown (starts with 0000000000010000)"),
])  # fmt: skip
def test_the_kind_of_a_file(head: bytes, kind: str) -> None:
    assert text.format_of(head) == kind


@pytest.mark.parametrize(("wanted", "installed", "same"), [
    ("0.32.0", "0.32.0", True), ("0.32.0", "0.32.0+cu130", True), ("0.32.0+cu130", "0.32.0", False),
    ("0.32.0+cu130", "0.32.0+cu129", False), ("0.32", "0.32.0", False),
])  # fmt: skip
def test_a_version_is_any_build_of_it(wanted: str, installed: str, same: bool) -> None:
    assert text.same_version(wanted, installed) is same


def test_the_memory_of_a_start_is_rounded_up() -> None:
    assert engine.share_of(1001, 0.9) == 901
    assert engine.is_unified("NVIDIA GB10") and not engine.is_unified("NVIDIA H200")


@pytest.mark.parametrize(("devices", "given"), [
    (None, True), (("1",), True), (("GPU-1a",), True), (("0",), False), ((), False),
    (("GPU-2",), False), (("1a",), False),
])  # fmt: skip
def test_a_gpu_is_assigned_by_index_or_uuid(devices: tuple[str, ...] | None, given: bool) -> None:
    assert engine.is_assigned(1, "GPU-1a2b", devices) is given


@pytest.mark.parametrize(("url", "good"), [
    ("http://h", True), ("https://h:8000/a?b=c", True), ("ftp://h", False), ("http://", False),
    ("http://me@h", False), ("http://h:port", False), ("http://h/ x", False),
    ("http://h/\x7f", False), ("http://" + "h" * 4096, False),
])  # fmt: skip
def test_a_url_names_a_host_and_no_user(url: str, good: bool) -> None:
    assert text.is_http_url(url) is good


# The root cause of a failed start, from logs that people have posted.

TRACES = yaml.safe_load(Path(__file__).with_name("traces.yaml").read_text())


@pytest.mark.parametrize("row", TRACES, ids=lambda row: str(row["source"]))
def test_the_first_exception_is_told_with_vllms_frame(row: dict[str, Any]) -> None:
    found = text.find_root_cause(row["log"].splitlines())
    assert found is not None and row["says"] in found.text
    assert found.place == row["place"]
    assert found.line() == f"root cause: {found.text} ({found.place})"


@pytest.mark.parametrize("lines", [
    [], ["INFO 03-02 19:48:25 [api_server.py:1044] loading", "Error: not a trace"],
    ["Traceback (most recent call last):", '  File "/x.py", line 1, in y'],
])  # fmt: skip
def test_a_log_without_an_exception_has_none(lines: list[str]) -> None:
    assert text.find_root_cause(lines) is None


def test_a_snapshot_tells_the_last_starts_root_cause_first() -> None:
    """An earlier start's is not this one's, and a secret in it is masked."""
    start = "INFO 03-02 19:48:25 [api_server.py:1043] vLLM API server version 0.32.0"
    old, new = TRACES[1]["log"].splitlines(), TRACES[0]["log"].splitlines()
    first, *others = units.with_root_cause([start, *old, start, *new])
    assert first.startswith("root cause: ValueError: No available memory") and others
    leak = ["Traceback (most recent call last):", '  File "/a/vllm/x.py", line 1, in y',
            "ValueError: --api-key sk-123 is not valid"]  # fmt: skip
    assert "sk-123" not in units.with_root_cause(leak)[0]
    assert units.with_root_cause(["error: flag"]) == ["error: flag"]


# Whose port it is, which listeners a connection may reach, and what ends a holder for good.

UNIT = "rigbook-engine.service"


@pytest.mark.parametrize(
    ("holder", "container", "ours"),
    [
        ({"unit": UNIT}, None, True),
        ({"unit": None, "container_id": OUR_PROCESSES}, OUR_PROCESSES[:12], True),
        ({"unit": None, "container_id": FOREIGN}, OUR_PROCESSES, False),
        ({"unit": "x.service"}, OUR_PROCESSES, False),
        ({"unit": None, "container_id": OUR_PROCESSES}, None, False),
        ({"unit": None, "pid": None}, None, False),
        # `docker run` is of our unit, and holds no port; what is of it is ours
        ({"unit": UNIT}, OUR_PROCESSES, True),
    ],
)
def test_a_holder_is_of_our_unit_or_our_container(
    holder: dict[str, object], container: str | None, ours: bool
) -> None:
    assert engine.is_ours(port(8000, **holder), UNIT, container) is ours


@pytest.mark.parametrize(("address", "asked", "reached"), [
    ("0.0.0.0", "10.0.0.1", True), ("::", "10.0.0.1", True), ("10.0.0.1", "10.0.0.1", True),
    ("127.0.0.1", "10.0.0.1", False), ("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "rig", True),
])  # fmt: skip
def test_every_listener_that_may_answer_counts(address: str, asked: str, reached: bool) -> None:
    """Two processes share a port with SO_REUSEPORT: nobody knows which one answered."""
    rows = [port(8000, address=address), port(8000, address=address, pid=9), port(22)]
    assert engine.owner_at(rows, 8000, asked) == (rows[:2] if reached else [])


def test_a_holder_that_nobody_keeps_is_left_to_its_pid() -> None:
    """A login's unit supervises nothing."""
    for name in (None, "user@1000.service", "ssh.service"):
        assert engine.end_ownership(port(8000, unit=name), (), ()) is None


def test_a_container_that_docker_does_not_list_is_named_by_its_id() -> None:
    """Docker could not be read."""
    found = engine.end_ownership(port(8000, unit=None, container_id=FOREIGN), (), ())
    assert found == (f"sudo docker stop {FOREIGN[:12]}", "")


def test_a_unit_that_starts_a_shell_with_docker_exec_is_named() -> None:
    """As the seed writes it: quotes and semicolons stand beside the container's name."""
    seed = unit(
        name="head.service",
        restart="no",
        enabled="disabled",
        exec_start=("/bin/sh", "-c", "docker start vllm_ds4; docker exec vllm_ds4 x"),
    )
    box = foreign_container(restart_policy="no")
    found = engine.end_ownership(port(8000, unit=None, container_id=FOREIGN), (box,), (seed,))
    assert found == ("sudo systemctl stop head.service && sudo docker stop vllm_ds4", "")
