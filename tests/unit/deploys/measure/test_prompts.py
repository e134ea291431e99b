"""No two prompts of a run begin alike, and an answer leaves room for its prompt."""

from __future__ import annotations

from deploys.procedures.measure.prompts import PROMPT_TOKENS, TASKS, prompt, rounds


def test_no_two_begin_alike() -> None:
    asked = [text for one in rounds(4, 6, "83a4-4-") for text in one]
    assert len(asked) == 24 and len({text.split()[0] for text in asked}) == 24
    assert [len(one) for one in rounds(4, 6, "x")] == [4] * 6


def test_an_answer_leaves_room_for_its_prompt() -> None:
    assert [prompt(n, "x")[0] for n in range(3)] == [256, 600, 800]
    assert prompt(2, "x", 512)[0] == 512 - PROMPT_TOKENS
    assert prompt(0, "x", 512)[0] == 256 and prompt(2, "x", 100)[0] == 1
    assert len(TASKS) == 8
