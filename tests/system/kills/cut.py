"""A command that is killed at a random moment, and what one more run of it came to.

RIGBOOK_KILLS_SEED=N repeats the moments of a run; RIGBOOK_KILLS=serve,upgrade has these alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.system.rehearsal import ROOT, Done

SEED = int(os.environ.get("RIGBOOK_KILLS_SEED") or random.SystemRandom().randrange(10**6))
COUNTS = {"serve": 14, "rollback": 8, "restart": 8, "weights": 6, "image": 6, "upgrade": 10,
          "kernel": 8}  # fmt: skip
CHOSEN = os.environ.get("RIGBOOK_KILLS", ",".join(COUNTS)).split(",")


@dataclass(frozen=True)
class Row:
    """One kill: when, behind which line of the operator's, and what the next run came to."""

    deploy: str
    at_s: float
    of_s: float
    line: str
    took_up: str
    again_s: float
    status: str


ROWS: list[Row] = []


def numbers(deploy: str) -> range:
    """The kills of a deploy; none where it was not chosen."""
    return range(COUNTS[deploy] if deploy in CHOSEN else 0)


class Cutter:
    """Kills one deploy's runs. `full_s` is how long its last whole run took, in seconds."""

    def __init__(self, deploy: str) -> None:
        self.deploy = deploy
        self.full_s = 0.0
        self._random = random.Random(f"{SEED} {deploy}")

    def measured(self, done: Done) -> Done:
        """A whole run, as long as which the next one is expected to take."""
        assert done.rc == 0, done.text
        self.full_s = done.seconds
        return done

    def kill(self, words: Sequence[str], **more: object) -> tuple[float, str]:
        """Starts the command and kills it, all of its group; (when, its last line)."""
        at_s = self._random.uniform(0.3, max(1.0, self.full_s))
        process = subprocess.Popen(
            list(words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True, **more,  # type: ignore[call-overload]
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            process.wait(at_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return at_s, lines[-1] if lines else "nothing said"

    def again(
        self,
        words: Sequence[str],
        run: Callable[[], Done],
        status: Callable[[], str],
        **more: object,
    ) -> Done:
        """A kill and ONE more run of the same command, which must work; its row of the table."""
        at_s, line = self.kill(words, **more)
        began = time.monotonic()
        done = run()
        took_up = next((x.strip() for x in done.text.splitlines() if "change " in x and (
            "takes up" in x or "closes it there" in x)), "")  # fmt: skip
        what = "undone first" if "undoes" in took_up else "goes on" if took_up else "-"
        ends = status() if done.rc == 0 else f"exit {done.rc}"
        row = Row(self.deploy, at_s, self.full_s, line, what, time.monotonic() - began, ends)
        ROWS.append(row)
        print(f"KILL {row}")
        assert done.rc == 0, f"killed after {at_s:.1f} s at {line!r}:\n{done.text}"
        return done


def table() -> list[str]:
    """The table of the note, with the seed."""
    good = sum(row.status in ("COMMITTED", "ROLLED_BACK") for row in ROWS)
    return [
        f"{len(ROWS)} kills, seed {SEED}: {good} served what was asked after one more run",
        "| deploy | killed after | of | its last line | taken up | one more run | status |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {r.deploy} | {r.at_s:.1f} s | {r.of_s:.0f} s | {r.line[:60]} | {r.took_up} | "
            f"{r.again_s:.0f} s | {r.status} |"
            for r in ROWS
        ),
    ]
