"""One line to the journal, with the priority that journald reads in front (sd-daemon(3))."""

from __future__ import annotations

import os
import sys

INFO, NOTICE, WARNING, ERROR = 6, 5, 4, 3


def say(text: str, priority: int = INFO) -> None:
    """Print one line; under systemd with its priority, so that LogLevelMax= can sift it."""
    line = " ".join(text.split())
    prefix = f"<{priority}>" if os.environ.get("JOURNAL_STREAM") else ""
    sys.stdout.write(f"{prefix}{line}\n")
    sys.stdout.flush()
