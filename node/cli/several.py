"""several: other reading verbs in one process, at the same time; each answers and fails by itself.

One start of Python on a host, one ssh channel and one sudo in place of one for each verb.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from node.core import validate
from node.core.errors import Json, failure

MOST_S = 3600.0


def parse_parts(request: Json, verbs: Collection[str]) -> dict[str, tuple[Json, float]]:
    """Gives each verb's request and how many seconds it may take. Raises NodeError."""
    body = validate.keys(request, "request", ("parts",), ("parts",))
    rows = validate.array(body["parts"], "parts", 20)
    found: dict[str, tuple[Json, float]] = {}
    for number, row in enumerate(rows):
        where = f"parts[{number}]"
        names = ("verb", "request", "seconds")
        part = validate.keys(row, where, names, names)
        verb = validate.choice(part["verb"], f"{where}.verb", verbs)
        if verb in found:
            raise validate.bad(f"{where}: {verb} is asked twice")
        seconds = validate.number(part["seconds"], f"{where}.seconds", 1, MOST_S)
        found[verb] = (part["request"], seconds)
    return found


def several(request: Json, verbs: Mapping[str, Callable[[Any], Json]]) -> Json:
    """Gives `parts`: by verb the document that it prints alone, also one that tells its failure.

    `verbs`: those that may be asked. What gives no answer within its seconds is told as such, and
    the others are given all the same.
    """
    began = time.monotonic()
    parts = parse_parts(request, verbs)
    answers: dict[str, Json] = {}
    threads: dict[str, threading.Thread] = {}
    for verb, (asked, _) in parts.items():

        def work(verb: str = verb, asked: Any = asked) -> None:
            try:
                answers[verb] = {"ok": True, **verbs[verb](asked)}
            except BaseException as error:  # also a SystemExit: it is this part's alone
                answers[verb] = failure(error)

        # daemon: one stuck in the kernel must not keep the program from ending
        threads[verb] = threading.Thread(target=work, name=verb, daemon=True)
        threads[verb].start()
    for verb, (_, seconds) in parts.items():
        threads[verb].join(max(0.0, began + seconds - time.monotonic()))
    return {"parts": {verb: answers.get(verb) or _late(seconds)
                      for verb, (_, seconds) in parts.items()}}  # fmt: skip


def _late(seconds: float) -> Json:
    return {"ok": False, "error": f"no answer in {seconds:g} s", "code": "late", "remedy": ""}
