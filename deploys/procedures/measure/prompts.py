"""What an engine is asked while it is measured: short, medium and long tasks of one kind of user.

Text with sense, since drafts of random words are accepted at another rate.
"""

from __future__ import annotations

# What an answer of each may have at most, in tokens; those of the third seed's portfolio.
SHORT, MEDIUM, LONG = 256, 600, 800
# A task, its mark and the chat's template: 120 tokens by a tokenizer of 512 words, fewer by others.
PROMPT_TOKENS = 160
TASKS = (
    (SHORT, "Explain in about 200 words how a hash table finds a key."),
    (MEDIUM, "Review this function, line by line, and write a better one: "
             "def mean(xs): s = 0; [s := s + x for x in xs]; return s / len(xs)"),
    (LONG, "Write a detailed guide to how a Linux host boots, from firmware to login."),
    (SHORT, "Explain in about 200 words why the sky is blue."),
    (MEDIUM, "Write a Python class for a queue with a limit, its tests, and the reasons for each."),
    (LONG, "Describe in depth how TCP recovers from loss, with an example for each mechanism."),
    (SHORT, "Explain in about 200 words what a page cache is for."),
    (MEDIUM, "Review this query for speed and say what you would change: "
             "SELECT * FROM a, b WHERE a.id = b.a OR a.name LIKE '%x%' ORDER BY b.at"),
)  # fmt: skip


def prompt(number: int, mark: str, longest: int | None = None) -> tuple[int, str]:
    """The task of this number, in turn, and how many tokens its answer may have: no more than an
    engine leaves whose `longest` is that of prompt and answer.

    `mark` and the number come first, so that none is answered from the prefix cache.
    """
    tokens, text = TASKS[number % len(TASKS)]
    if longest is not None:
        tokens = max(1, min(tokens, longest - PROMPT_TOKENS))
    return tokens, f"({mark}{number}) {text}"


def rounds(streams: int, count: int, mark: str) -> list[list[str]]:
    """The prompts of `count` rounds of `streams` answers each: no two alike."""
    return [
        [prompt(number * streams + stream, mark)[1] for stream in range(streams)]
        for number in range(count)
    ]
