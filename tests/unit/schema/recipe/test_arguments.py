"""A command line as flags, and flags as a command line: the same words to vLLM both ways."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from schema.recipe.arguments import SHORT, flags_of
from schema.recipe.flags import flag_arguments
from schema.recipe.placeholders import fill


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["a/b"], {"model": "a/b"}),
        (["--model", "a/b"], {"model": "a/b"}),
        (["a/b", "-tp", "2", "-ep"], {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
        (["a/b", "--a-b", "1", "--c_d=x"], {"a_b": 1, "c_d": "x"}),
        (["a/b", "--no-a-b", "--x"], {"a_b": False, "x": True}),
        (["a/b", "--x", "-1", "--y", "0.5"], {"x": -1, "y": 0.5}),
        (["a/b", "-O3"], {"optimization_level": 3}),
        (["a/b", "--x", "0.80", "--y", "007"], {"x": "0.80", "y": "007"}),
        (["a/b", "--x", "1", "two"], {"x": [1, "two"]}),
        (["a/b", "--x", '{"a": {"b": [1, null]}}'], {"x": {"a": {"b": [1, None]}}}),
        (["a/b", "--x", "{a}"], {"x": "{{a}}"}),
        (["a/b", "--x.y_z", "true", "-cc.mode=3"], {"x.y_z": True, "compilation_config.mode": 3}),
        (["a/b", "--x", "true"], {"x": "true"}),
        (["a/b", "--x=a=b"], {"x": "a=b"}),
    ],
)
def test_words_become_flags_and_flags_the_words(
    words: list[str], flags: dict[str, JsonValue]
) -> None:
    found, twice = flags_of(words)
    assert (found, twice) == ({"model": "a/b", **flags}, [])
    rendered = [
        word
        for name, value in found.items()
        for word in flag_arguments(name, value, lambda text: fill(text, {}, "x"))
    ]
    assert flags_of(rendered) == (found, [])


def test_of_two_the_last_one_counts() -> None:
    assert flags_of(["a/b", "-tp", "1", "--tensor-parallel-size", "2"]) == (
        {"model": "a/b", "tensor_parallel_size": 2},
        ["tensor_parallel_size"],
    )


@pytest.mark.parametrize(
    "words", [["a/b", "-zz"], ["a/b", "--"], ["a/b", "c"], ["--model", "a", "b"]]
)
def test_words_that_no_flag_takes(words: list[str]) -> None:
    with pytest.raises(ValueError, match="; allowed: "):
        flags_of(words)


def test_short_names_are_of_long_ones() -> None:
    assert len(set(SHORT.values())) == len(SHORT)
    assert all(short.startswith("-") and not short.startswith("--") for short in SHORT)
