"""The verbs that systemd runs: they log lines instead of answering JSON, and take no request."""

from __future__ import annotations

from node.cli import verb_table
from node.core import log
from node.core.errors import NodeError, io_reason


def run(verb: str) -> int:
    """Runs the verb of that name; gives the exit status: 1 after one line that says why."""
    try:
        verb_table.function_of(verb)()
        return 0
    except NodeError as error:
        line = f"{error}; {error.remedy}" if error.remedy else str(error)
    except OSError as error:
        line = io_reason(error)
    except Exception as error:
        line = f"a fault of rignode itself: {type(error).__name__}: {error}"
    log.say(f"{verb}: {line}", log.ERROR)
    return 1
