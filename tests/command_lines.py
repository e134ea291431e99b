"""Who shows a secret in a command line, while something runs."""

from __future__ import annotations

import threading
from pathlib import Path


class CommandLines:
    """Reads every command line of this machine, its hosts and their containers among them, as long
    as it is open; `found` are those with one of the values.
    """

    def __init__(self, *values: str) -> None:
        self.found: set[str] = set()
        self.looks = 0
        self._values = [value.encode() for value in values]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._closed.is_set():
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    words = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                if any(value in words for value in self._values):
                    self.found.add(words.replace(b"\0", b" ").decode(errors="replace"))
            self.looks += 1
            self._closed.wait(0.02)  # less takes a core from what is looked at

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
