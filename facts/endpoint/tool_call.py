"""A tool call of the engine that can be run: asked from the operator's machine, over HTTP.

A model without its tool parser answers a chat well, and gives its calls as text
(hermes-agent#15453); a parser may hand on arguments that are cut off (vllm#22885, vllm#55495) or
empty (vllm PR#54686).
"""

from __future__ import annotations

import json
from typing import Any

from facts.endpoint.completion import Answer, Endpoint, post
from node.rules import completion as rules

NAME, ARGUMENT = "get_weather", "city"
PROMPT = f"What is the weather in Paris now? Call {NAME}."
# thoughts come first
MAX_TOKENS = 1024
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Gives the weather in a city at this moment.",
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "The city's name."}},
            "required": [ARGUMENT],
        },
    },
}


def ask_for_call(endpoint: Endpoint, timeout_s: float = 120.0) -> Answer:
    """One chat completion with a tool: ok when it comes as a call whose arguments fit the tool.

    The model is free to call it (`auto`): only then its own parser has to find the call.
    """
    body = rules.question(endpoint.model, False, dict(endpoint.chat_template_kwargs))
    body |= {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": MAX_TOKENS}
    return post(endpoint, {**body, "tools": [TOOL], "tool_choice": "auto"}, judge, timeout_s)


def judge(raw: bytes) -> rules.Reply:
    """What the body of a 200 is worth as a call of the tool."""
    try:
        choice = json.loads(raw.decode("utf-8"))["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        functions = [call["function"] for call in calls]
        found = next((f for f in functions if f["name"] == NAME), None)
        content = str(message.get("content") or "")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        said = raw[:200].decode("utf-8", "replace")
        return rules.Reply(False, f"HTTP 200 without a completion: {said!r}", True)
    if found is not None:
        problem = _misfit(found.get("arguments"))
        if problem:
            return rules.Reply(False, f"the call of {NAME} cannot be run: {problem}", True)
        return rules.Reply(True, f"a call of {NAME} with arguments that fit")
    if functions:
        return rules.Reply(False, f"the call is of {functions[0]['name']!r}, not of {NAME}", True)
    if choice.get("finish_reason") == "length":
        return rules.Reply(False, f"no call within {MAX_TOKENS} tokens", True)
    if NAME in content:
        why = "the call came as text: the tool parser is off, or another model's"
        return rules.Reply(False, f"{why}: {content[:120]!r}", True)
    return rules.Reply(False, f"the model called no tool, it said {content[:120]!r}", True)


def _misfit(arguments: Any) -> str | None:
    """Why the arguments are none of the tool's; None where they fit."""
    try:
        values = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return f"its arguments are no JSON: {str(arguments)[:120]!r}"
    if not isinstance(values, dict):
        return f"its arguments are no map: {str(arguments)[:120]!r}"
    city = values.get(ARGUMENT)
    if not isinstance(city, str) or not city.strip():
        return f"it lacks {ARGUMENT}: {str(arguments)[:120]!r}"
    return None
