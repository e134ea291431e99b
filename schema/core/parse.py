"""From plain data (YAML, pyinfra's data) to a type, with errors a person can act on.

pydantic checks; this module turns its findings into `file: key: what is wrong; allowed: …`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from node.rules.secret import holds_secret
from schema.core.errors import HiddenValueError, SpecError, shown, unknown

M = TypeVar("M", bound=BaseModel)

# A default that hangs on a key which is wrong itself, and has its line.
_FOLLOWS = "default_factory_not_called"
# Keys of an earlier release's recipes that are gone, each with what to do instead.
REMOVED = {
    "container.network": "an engine is always on its host's network; leave it out",
    "weights.total_bytes": "nothing reads it; leave it out",
    "container.build": "an image is not built on a node any more; leave this out and build it by "
    "hand: docs/runbooks/image.md",
}
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a map of keys and values",
    "model_type": "a map of keys and values",
    "tuple_type": "a list",
}


def build(
    model: type[M],
    data: Mapping[str, object],
    where: Callable[[str], str],
    given: Mapping[str, object] | None = None,
) -> M:
    """An instance of `model` from plain data, checked strictly: no text for a number, or back.

    `where` gives the file that a top-level key came from (asked with "" for the whole). `given`
    are keys that the caller sets and a file must not. SpecError has one line for each problem.
    """
    given = given or {}
    taken = [
        _joined(where(key), (), unknown("key", key, set(known_keys(model)) - given.keys()))
        for key in data
        if key in given
    ]
    try:
        text = json.dumps({**data, **given}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(*taken, *_not_plain(data, where)) from error
    try:
        checked = model.model_validate_json(text, strict=True)
    except ValidationError as error:
        found = [dict(e) for e in error.errors(include_url=False)]
        lines = [_line(model, e, where, given) for e in found if e["type"] != _FOLLOWS]
        raise SpecError(*dict.fromkeys([*taken, *lines])) from None
    if taken:
        raise SpecError(*taken)
    return checked


def misfit(error: ValidationError) -> str:
    """Where a host's answer does not fit its type first, and how."""
    first = error.errors(include_url=False)[0]
    return f"does not fit at {'.'.join(map(str, first['loc']))}: {first['msg']}"


def known_keys(model: type[BaseModel]) -> list[str]:
    """The keys that `model` takes, as its files spell them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _not_plain(data: Mapping[str, object], where: Callable[[str], str]) -> list[str]:
    """The lines for values that are no plain data (objects, sets, NaN)."""
    lines = []
    for key, value in data.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            kind = type(value).__name__
            lines.append(
                f"{where(key)}: {key}: holds a value that is no plain data ({kind}); "
                "allowed: text, finite numbers, true, false, lists and maps"
            )
    return lines


def _line(
    model: type[BaseModel],
    found: dict[str, Any],
    where: Callable[[str], str],
    given: Mapping[str, object],
) -> str:
    """One finding of pydantic as a line of ours."""
    loc = tuple(part for part in found["loc"] if part != "[key]")
    kind, value, context = found["type"], found.get("input"), found.get("ctx", {})
    hidden = _may_be_secret(loc)
    if kind == "extra_forbidden":
        if gone := REMOVED.get(".".join(map(str, loc))):
            return _joined(where(str(loc[0])), loc, gone)
        parent = _model_at(model, loc[:-1])
        keys = set(known_keys(parent) if parent else []) - (
            given.keys() if parent is model else set()
        )
        text = unknown("key", str(loc[-1]), keys)
        return _joined(where(str(loc[0])), loc[:-1], text)
    if kind == "missing":
        text = "is missing; it has no default"
    elif kind == "value_error":
        hidden = hidden or isinstance(context["error"], HiddenValueError)
        text = str(context["error"]) if hidden else _with_value(value, str(context["error"]))
    elif kind == "literal_error":
        text = f"is {shown(value, hidden)}; allowed: {context['expected']}"
    elif kind in ("greater_than_equal", "greater_than", "less_than_equal"):
        text = f"is {shown(value, hidden)}; allowed: {_bound(kind, context)}"
    elif kind == "too_short":
        text = f"has too few entries; allowed: {context['min_length']} or more"
    elif kind == "json_invalid":
        text = "is nested too deeply or not valid Unicode; allowed: UTF-8 text"
    elif kind in _KINDS:
        hint = " (put it in quotes)" if kind == "string_type" and _is_scalar(value) else ""
        text = f"is {_described(value, hidden)}; allowed: {_KINDS[kind]}{hint}"
    else:
        text = f"is {_described(value, hidden)}, which this key does not take"
    return _joined(where(str(loc[0]) if loc else ""), loc, text)


def _joined(file: str, loc: tuple[int | str, ...], text: str) -> str:
    """`file: key: text`, with the key as a dotted path."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    # A key is free text, too: an escape sequence in it must not reach the terminal.
    path = path if path.isprintable() else ascii(path)
    return f"{file}: {path}: {text}" if path else f"{file}: {text}"


def _with_value(value: object, text: str) -> str:
    """A validator's own text, with the value it is about where that is one scalar."""
    return f"{shown(value)} {text}" if isinstance(value, str) else text


def _bound(kind: str, context: dict[str, Any]) -> str:
    if kind == "greater_than":
        return f"more than {context['gt']}"
    if kind == "greater_than_equal":
        return f"{context['ge']} or more"
    return f"{context['le']} or less"


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _may_be_secret(loc: tuple[int | str, ...]) -> bool:
    """Whether the value there may be a secret, by its keys: no error shows it."""
    return "secrets" in loc or any(isinstance(part, str) and holds_secret(part) for part in loc)


def _described(value: object, hidden: bool = False) -> str:
    """The value with its kind, as the person who wrote it would say; a secret's kind alone."""
    if value is None:
        return "empty (null)"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    word = "text" if isinstance(value, str) else "number"
    return (word if word == "text" else f"a {word}") if hidden else f"the {word} {shown(value)}"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model whose keys stand at `loc`; None where there is none."""
    kind: Any = model
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {f.alias or name: f for name, f in kind.model_fields.items()}
            kind = fields[str(part)].annotation
        else:
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
        options = [arg for arg in get_args(kind) if isinstance(arg, type) and arg is not type(None)]
        if get_origin(kind) not in (dict, tuple) and options:
            kind = options[0]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
