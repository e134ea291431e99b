"""A small suite of tool calls with a score, asked over HTTP: what a client of agents depends on.

One tool; the right one of three; none where none is needed; nested arguments; two calls in one
answer; a streamed call. The model is free to call (`auto`), so its own parser has to find the call.
Arguments are compared after JSON, since a parser may cut them off (vllm#22885, vllm#55495).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from facts.endpoint.completion import Endpoint, key_headers, post
from facts.endpoint.tool_call import MAX_TOKENS
from node.rules import completion as rules
from schema.measure.run import ToolRow

TIMEOUT_S = 120.0
Calls = list[tuple[str, Any]]


def _tool(name: str, says: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": name, "description": says, "parameters": parameters}
    return {"type": "function", "function": function}


_TEXT = {"type": "string"}
WEATHER = _tool("get_weather", "Gives the weather in a city at this moment.", city=_TEXT)
TIME = _tool("get_time", "Gives the local time in a city.", city=_TEXT)
MAIL = _tool("send_mail", "Sends a mail.", to=_TEXT, text=_TEXT)
ORDER = _tool(
    "place_order", "Places an order in a shop.",
    customer={"type": "object", "properties": {"name": _TEXT, "city": _TEXT},
              "required": ["name", "city"]},
    items={"type": "array", "items": {
        "type": "object", "properties": {"article": _TEXT, "count": {"type": "integer"}},
        "required": ["article", "count"]}},
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One question: its tools, and what is wrong with the calls that came (None: nothing)."""

    name: str
    prompt: str
    tools: tuple[dict[str, Any], ...]
    wrong: Callable[[Calls], str | None]
    streamed: bool = False


def _city(calls: Calls, tool: str, *cities: str) -> str | None:
    """What is wrong with calls that are to be of `tool`, one for each city."""
    names = [name for name, _ in calls]
    if names != [tool] * len(cities):
        return f"calls {', '.join(names) or 'no tool'}; {tool} was asked for {len(cities)} times"
    said = [str(v.get("city", "")) if isinstance(v, Mapping) else "" for _, v in calls]
    missing = [city for city in cities if not any(city.lower() in one.lower() for one in said)]
    return f"the arguments lack {', '.join(missing)}: {said}" if missing else None


def _order(calls: Calls) -> str | None:
    if [name for name, _ in calls] != ["place_order"]:
        return f"calls {', '.join(name for name, _ in calls) or 'no tool'}, not place_order"
    values = calls[0][1]
    try:
        customer, items = values["customer"], values["items"]
        fits = (customer["name"], customer["city"]) == ("Ada", "Bonn")
        fits = fits and [(str(i["article"]), i["count"]) for i in items] == [("pen", 3), ("ink", 1)]
    except (TypeError, KeyError, IndexError):
        fits = False
    return None if fits else f"the nested arguments are not those asked for: {str(values)[:160]}"


SUITE = (
    Task("one-tool", "What is the weather in Paris now? Call get_weather.", (WEATHER,),
         lambda calls: _city(calls, "get_weather", "Paris")),
    Task("choice", "What time is it in Tokyo? Call the tool that knows.", (WEATHER, TIME, MAIL),
         lambda calls: _city(calls, "get_time", "Tokyo")),
    Task("none-needed", "Say hello in one word. No tool is needed.", (WEATHER, MAIL),
         lambda calls: f"calls {calls[0][0]} though none is needed" if calls else None),
    Task("nested", "Place an order for the customer Ada of Bonn: article pen, 3 times, and article "
         "ink, once. Call place_order.", (ORDER,), _order),
    Task("parallel", "What is the weather in Paris and in Rome now? Call get_weather once for each "
         "city, both in this answer.", (WEATHER,),
         lambda calls: _city(calls, "get_weather", "Paris", "Rome")),
    Task("streamed", "What is the weather in Oslo now? Call get_weather.", (WEATHER,),
         lambda calls: _city(calls, "get_weather", "Oslo"), streamed=True),
)  # fmt: skip


class _Unfit(Exception):
    """The answer holds no calls that can be read: `str()` says why."""


def run_suite(endpoint: Endpoint) -> tuple[ToolRow, ...]:
    """Asks each question once; a question that failed is a row that is not ok."""
    return tuple(_asked(endpoint, task) for task in SUITE)


def _asked(endpoint: Endpoint, task: Task) -> ToolRow:
    body = rules.question(endpoint.model, False, dict(endpoint.chat_template_kwargs))
    body |= {
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": MAX_TOKENS,
        "tools": list(task.tools),
        "tool_choice": "auto",
    }

    def judge(raw: bytes) -> rules.Reply:
        try:
            calls = _read(_whole(raw))
        except _Unfit as error:
            return rules.Reply(False, str(error), True)
        why = task.wrong(calls)
        return rules.Reply(why is None, why or "as asked", True)

    if task.streamed:
        return _streamed(endpoint, task, body)
    answer = post(endpoint, body, judge, TIMEOUT_S)
    return ToolRow(name=task.name, ok=answer.ok, detail=answer.detail)


def _whole(raw: bytes) -> list[Mapping[str, Any]]:
    try:
        message = json.loads(raw.decode("utf-8"))["choices"][0]["message"]
        return [call["function"] for call in message.get("tool_calls") or []]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise _Unfit(f"HTTP 200 without a completion: {raw[:160]!r}") from None


def _read(functions: list[Mapping[str, Any]]) -> Calls:
    calls: Calls = []
    for function in functions:
        name, arguments = str(function.get("name")), function.get("arguments")
        try:
            calls.append((name, json.loads(str(arguments))))
        except (ValueError, RecursionError):
            said = str(arguments)[:120]
            raise _Unfit(f"the call of {name} cannot be run: no JSON: {said!r}") from None
    return calls


def _streamed(endpoint: Endpoint, task: Task, body: dict[str, Any]) -> ToolRow:
    """The same with the call in pieces: name and arguments are put together by their index."""
    import httpx

    url = f"{endpoint.base_url}/v1/chat/completions"
    timeout = httpx.Timeout(TIMEOUT_S, connect=3.0)
    parts: dict[int, dict[str, str]] = {}
    try:
        with httpx.stream(
            "POST", url, json={**body, "stream": True}, headers=key_headers(endpoint),
            timeout=timeout, trust_env=False,
        ) as response:  # fmt: skip
            if response.status_code != 200:
                said = response.read()[:160].decode("utf-8", "replace")
                told = f"HTTP {response.status_code}: {said}"
                return ToolRow(name=task.name, ok=False, detail=told)
            for line in response.iter_lines():
                _put_together(parts, line)
    except httpx.HTTPError as error:
        told = f"{url}: {type(error).__name__}: {error}".rstrip(": ")
        return ToolRow(name=task.name, ok=False, detail=told)
    try:
        calls = _read([parts[index] for index in sorted(parts)])
    except _Unfit as error:
        return ToolRow(name=task.name, ok=False, detail=str(error))
    why = task.wrong(calls)
    return ToolRow(name=task.name, ok=why is None, detail=why or "as asked, in pieces")


def _put_together(parts: dict[int, dict[str, str]], line: str) -> None:
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return
    try:
        choices = json.loads(data).get("choices") or [{}]
        pieces = (choices[0].get("delta") or {}).get("tool_calls") or []
        for piece in pieces:
            part = parts.setdefault(int(piece.get("index", 0)), {"name": "", "arguments": ""})
            function = piece.get("function") or {}
            for key in part:
                part[key] += function.get(key) or ""
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        return
