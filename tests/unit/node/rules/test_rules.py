"""The rules that both sides follow: one table each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.rules import completion, magic, memory_need, urls, versions

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
        reply = completion.judge(raw, reasoning)
        assert expected in reply.detail
        assert reply.ok == (" characters" in expected) and reply.final != reply.ok


@pytest.mark.parametrize(("head", "kind"), [
    (b"GGUF\3\0\0\0", "gguf"), (SAFETENSORS, "safetensors"),
    (b"PK\3\4\x14\0\0\0{\0", "a PyTorch zip"), (b"version https://git-lfs", magic.POINTER),
    (bytes(16), "empty or zeroes, as an unfinished download leaves it"),
    (b"", "empty or zeroes, as an unfinished download leaves it"),
    (b"<html>ab", "unknown (starts with 3c68746d6c3e6162)"),
    ((1 << 40).to_bytes(8, "little") + b"{", "unknown (starts with 0000000000010000)"),
])  # fmt: skip
def test_the_kind_of_a_file(head: bytes, kind: str) -> None:
    assert magic.format_of(head) == kind


@pytest.mark.parametrize(("wanted", "installed", "same"), [
    ("0.32.0", "0.32.0", True), ("0.32.0", "0.32.0+cu130", True), ("0.32.0+cu130", "0.32.0", False),
    ("0.32.0+cu130", "0.32.0+cu129", False), ("0.32", "0.32.0", False),
])  # fmt: skip
def test_a_version_is_any_build_of_it(wanted: str, installed: str, same: bool) -> None:
    assert versions.same_version(wanted, installed) is same


def test_the_memory_of_a_start_is_rounded_up() -> None:
    assert memory_need.share_of(1001, 0.9) == 901
    assert memory_need.is_unified("NVIDIA GB10") and not memory_need.is_unified("NVIDIA H200")


@pytest.mark.parametrize(("devices", "given"), [
    (None, True), (("1",), True), (("GPU-1a",), True), (("0",), False), ((), False),
    (("GPU-2",), False), (("1a",), False),
])  # fmt: skip
def test_a_gpu_is_assigned_by_index_or_uuid(devices: tuple[str, ...] | None, given: bool) -> None:
    assert memory_need.is_assigned(1, "GPU-1a2b", devices) is given


@pytest.mark.parametrize(("url", "good"), [
    ("http://h", True), ("https://h:8000/a?b=c", True), ("ftp://h", False), ("http://", False),
    ("http://me@h", False), ("http://h:port", False), ("http://h/ x", False),
    ("http://h/\x7f", False), ("http://" + "h" * 4096, False),
])  # fmt: skip
def test_a_url_names_a_host_and_no_user(url: str, good: bool) -> None:
    assert urls.is_http_url(url) is good
