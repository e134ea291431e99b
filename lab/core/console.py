"""What the lab prints, and how it runs other programs."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.core.settings import LabError


def say(text: str) -> None:
    """One progress line, at once."""
    print(f"lab: {text}", flush=True)


@contextmanager
def phase(name: str, estimate: str = "") -> Iterator[None]:
    """Announce a phase and print how long it took; ``estimate`` says what to expect."""
    say(f"{name} ..." + (f" (about {estimate})" if estimate else ""))
    began = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - began:.1f} s")


def run(
    argv: Sequence[str | Path],
    *,
    log: Path | None = None,
    timeout: float | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and give its stdout; LabError with its last lines if it fails.

    With ``log`` both streams go to that file (and "" comes back).
    """
    words = [str(word) for word in argv]
    try:
        with log.open("a") if log else contextlib.nullcontext(subprocess.PIPE) as stream:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL if log else None,
                stdout=stream,
                stderr=stream,
                text=True,
                timeout=timeout,
                cwd=cwd,
                env=env,
            )
        output = log.read_text(errors="replace") if log else done.stdout + done.stderr
    except FileNotFoundError as error:
        raise LabError(f"program not found: {words[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{words[0]} did not end within {timeout:.0f} s") from error
    if done.returncode != 0:
        tail = "\n  ".join(output.strip().splitlines()[-8:])
        raise LabError(f"{' '.join(words[:4])} failed with exit {done.returncode}:\n  {tail}")
    return "" if log else str(done.stdout)


def human(size: float) -> str:
    """Bytes as a short text: 605 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
