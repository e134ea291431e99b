"""YAML as recipes use it: plain data, no key twice, errors as one line with the line's number."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from schema.core.errors import SpecError, shown

# No recipe comes near this; a wrong file (weights, a log) is refused before it is parsed.
MAX_BYTES = 256 * 1024


class _NoAlias(yaml.composer.Composer):
    """Refuses aliases: with them a few hundred bytes stand for megabytes."""

    check_event: Any
    peek_event: Any

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                problem="an alias (*name); allowed: values written out", problem_mark=mark
            )
        return super().compose_node(parent, index)


class TextLoader(_NoAlias, yaml.BaseLoader):
    """Every scalar stays the text that it is, 41834 as well as 48cebd4ad."""


class _PlainLoader(_NoAlias, yaml.SafeLoader):
    """SafeLoader that refuses keys given twice, keys that are no text, and aliases."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str):
                problem = f"key {shown(key)} is not text; allowed: text (put it in quotes)"
            elif key in seen:
                problem = f"key {shown(key)} is given twice; allowed: each key once"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# A date stays the text that it is: no key of ours takes a date.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_map(path: Path, shown_as: str) -> dict[str, object]:
    """The map in a YAML file. SpecError (naming the file as `shown_as`) says what is wrong."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_BYTES:
            raise SpecError(
                f"{shown_as}: is {len(raw)} bytes; allowed: YAML of {MAX_BYTES} or fewer"
            )
        data = yaml.load(raw.decode(), Loader=_PlainLoader)
    except OSError as error:
        raise SpecError(f"{shown_as}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown_as}: is not UTF-8 text; allowed: YAML in UTF-8") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{shown_as}: {one_line(error)}") from None
    except RecursionError:
        raise SpecError(
            f"{shown_as}: is nested too deeply; allowed: a recipe's few levels"
        ) from None
    except ValueError as error:
        # PyYAML lets the error of a conversion (`!!int x`) through.
        raise SpecError(f"{shown_as}: {error}; allowed: valid YAML") from None
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise SpecError(f"{shown_as}: is {kind}; allowed: a map of keys and values")
    return data


def one_line(error: yaml.YAMLError) -> str:
    """`line 7, column 3: what is wrong`."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        text = f"{place}{error.problem or error.context}"
    else:
        text = str(error).splitlines()[0]
    return text if "; allowed: " in text else f"{text}; allowed: valid YAML"
