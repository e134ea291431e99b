"""facts.endpoint.tool_call against a stand-in engine: which call is a proof, and what else came."""

from __future__ import annotations

from typing import Any

import pytest

from facts.endpoint.completion import Answer, Endpoint
from facts.endpoint.tool_call import ask_for_call
from tests.plans.support.engine_double import EngineDouble, Reply, completion


def called(arguments: object, name: str = "get_weather", **more: Any) -> dict[str, Any]:
    """A completion with one call, as vLLM gives it."""
    call = {"id": "chatcmpl-tool-8e99c35b9fd663ad", "type": "function",
            "function": {"name": name, "arguments": arguments}}  # fmt: skip
    body = completion(None, tool_calls=[call], **more)
    body["choices"][0]["finish_reason"] = "tool_calls"
    return body


def asked(body: dict[str, Any] | str, status: int = 200) -> Answer:
    """The answer about an engine that says `body`."""
    with EngineDouble(lambda: Reply(body, status)) as engine:
        return ask_for_call(Endpoint(engine.url, "tiny"), 5.0)


def test_a_call_that_can_be_run_is_the_proof() -> None:
    answer = asked(called('{"city": "Paris"}', reasoning="The user wants the weather."))
    assert answer.ok and answer.detail.startswith(
        "a call of get_weather with arguments that fit in"
    )


def test_the_model_is_free_to_call() -> None:
    """A forced call is made by the grammar, whatever parser there is."""
    with EngineDouble(lambda: Reply(called('{"city": "Paris"}'))) as engine:
        where = Endpoint(engine.url, "tiny", True, (("thinking", True),))
        assert ask_for_call(where).ok
    (body,) = engine.asked
    assert body["tool_choice"] == "auto" and body["temperature"] == 0
    assert body["tools"][0]["function"]["parameters"]["required"] == ["city"]
    assert body["chat_template_kwargs"] == {"thinking": True}


LENGTH = completion("")
LENGTH["choices"][0]["finish_reason"] = "length"
INSTEAD: dict[str, tuple[dict[str, Any] | str, str]] = {
    # hermes-agent#15453
    "text": (completion('< | DSML | tool_calls>< | DSML | invoke name="get_weather">'),
             "the call came as text: the tool parser is off"),
    # vllm#22885: the last brace is lost
    "no brace": (called('{"city": "Paris"'), "its arguments are no JSON: '{\"city\": \"Paris\"'"),
    # vllm#55495: cut off, with a tag of the model's own syntax
    "leaked tag": (called('{"city": "Par\\nis", "</parameter": '), "its arguments are no JSON"),
    # vllm PR#54686: a call without its arguments
    "empty": (called("{}"), "it lacks city: '{}'"),
    "not text": (called({"city": "Paris"}), "its arguments are no JSON"),
    "null": (called(None), "its arguments are no JSON: 'None'"),
    "a list": (called('["Paris"]'), "its arguments are no map"),
    "another type": (called('{"city": 7}'), "it lacks city"),
    "another tool": (called('{"city": "Paris"}', name="get_time"), "the call is of 'get_time'"),
    "words": (completion("It is sunny."), "the model called no tool, it said 'It is sunny.'"),
    "thoughts only": (LENGTH, "no call within 1024 tokens"),
    "no JSON": ("<html>", "HTTP 200 without a completion: '<html>'"),
    "no message": ({"choices": []}, "HTTP 200 without a completion"),
    "a call without a function": (completion("x", tool_calls=[7]), "HTTP 200 without"),
}  # fmt: skip


@pytest.mark.parametrize("name", INSTEAD)
def test_what_came_instead_is_told(name: str) -> None:
    body, words = INSTEAD[name]
    answer = asked(body)
    assert not answer.ok and answer.final and words in answer.detail, answer


def test_an_engine_without_a_tool_parser_says_so() -> None:
    """vLLM's own words."""
    said = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    answer = asked(said, 400)
    assert not answer.ok and answer.final and "HTTP 400" in answer.detail
    assert "--enable-auto-tool-choice" in answer.detail
