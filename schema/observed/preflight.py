"""What a node tells of a command line that it asked the target's own parser about."""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen


class ParserAnswer(Frozen):
    """`said` are the parser's words, or why it could not be asked; `unsure` is what the model's
    config said without a GPU, empty where it said nothing. Seconds.
    """

    outcome: Literal["accepted", "refused", "unchecked"]
    said: str
    unsure: str
    took_s: float
