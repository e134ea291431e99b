"""The verbs that systemd runs: they log lines instead of answering JSON, and take no request."""

from __future__ import annotations

from typing import Callable, Dict, List

from node import log
from node.errors import NodeError, io_reason


def _prelaunch() -> None:
    from node import prelaunch

    prelaunch.run()


def _answer() -> None:
    from node import answer

    answer.run()


def _pair() -> None:
    from node import pair

    pair.run()


def _watch() -> None:
    from node import watch

    watch.run()


def _container(word: str) -> None:
    from node import prelaunch

    prelaunch.run_container(word)


# each imports what it needs when it runs: the others must not pay for it
_RUN: Dict[str, Callable[[], None]] = {
    "prelaunch": _prelaunch,
    "answer": _answer,
    "pair": _pair,
    "watch": _watch,
    "container stop": lambda: _container("stop"),
    "container remove": lambda: _container("remove"),
}


def name_of(words: List[str]) -> str:
    """Gives the verb that these words are, or ""."""
    text = " ".join(words)
    return text if text in _RUN else ""


def run(verb: str) -> int:
    """Runs the verb of that name; gives the exit status: 1 after one line that says why."""
    try:
        _RUN[verb]()
        return 0
    except NodeError as error:
        line = f"{error}; {error.remedy}" if error.remedy else str(error)
    except OSError as error:
        line = io_reason(error)
    except Exception as error:
        line = f"a fault of rignode itself: {type(error).__name__}: {error}"
    log.say(f"{verb}: {line}", log.ERROR)
    return 1


VERBS = tuple(_RUN)
