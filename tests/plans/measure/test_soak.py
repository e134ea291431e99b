"""soak: load for a time, the nodes looked at meanwhile, a verdict, and what is kept of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from schema.measure import SoakRun
from tests.plans.support.doubles import Reply, completion
from tests.plans.support.scenario import (
    Runs,
    Scenario,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
)

SOAK = ("deploys/soak.py", "-y")
MADE = tempfile.TemporaryDirectory(prefix="rigbook-soak-")
METRICS = 'vllm:generation_tokens_total{engine="0"} 90000\n'
PROBLEM = {"available": 8 << 30, "problem": "nvidia-smi -q did not answer in 10 s"}


def folder(name: str) -> dict[str, str]:
    """The variable that names a folder of measurements."""
    return {"RIGBOOK_MEASUREMENTS": str(Path(MADE.name, name))}


def soak(name: str, *keys: str, status: int = 200, **more: Any) -> Scenario:
    """A soak of the pair that serves; the shortest."""
    body = completion() | {"usage": {"completion_tokens": 20}}
    first = iter((200,) * 4)

    def reply() -> Reply:
        return Reply(body, status=next(first, status), late_s=0.3)

    return Scenario((*SOAK, *data("seconds=6", *keys)), answers=reply, metrics=METRICS,
                    env=folder(name), **more)  # fmt: skip


TABLE = {
    "soak": (soak("soak", "streams=2"), done(
        "2 streams for 6 s; Ctrl-C keeps what was measured", " answers, the slowest ", "0 failed, ",
        "lab1: memory used: ", "memory: too short to say", "kept as ", "kept on @fake/lab1 as",
        steps=["lab1 measure keep"])),
    "fails": (soak("fails", status=500), failed(
        " answers failed: HTTP 500", steps=["lab1 measure keep"])),
    "unseen": (soak("unseen", faults={"@fake/lab2:says measure sample": PROBLEM}), done(
        "DOUBT: @fake/lab2 was not seen all the time: nvidia-smi -q did not answer")),
    "too many": (soak("too-many", "streams=5"), refused(
        "streams: 5 is more than --max-num-seqs 4 of the engine")),
    "too short": (Scenario((*SOAK, *data("seconds=2"))), refused("seconds: ")),
    "silent": (Scenario(SOAK, env=folder("silent")), refused("nothing was measured: tiny does")),
    "dry": (Scenario(("deploys/soak.py", "--dry"), env=folder("dry")), quiet("would load")),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All of them."""
    return Runs({name: scenario for name, (scenario, _) in TABLE.items()})


test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_all_of_it_is_kept(ran: Runs) -> None:
    (path,) = Path(MADE.name, "soak", "lab").glob("*-soak-*.json")
    run = SoakRun.model_validate_json(path.read_text())
    assert run.complete and run.streams == 2 and run.seconds >= 6
    assert 10 < run.completed <= 48 and run.tokens == 20 * run.completed
    assert [len(machine.samples) > 1 for machine in run.machines] == [True, True]
    (path,) = Path(MADE.name, "fails", "lab").glob("*-soak-*.json")
    run = SoakRun.model_validate_json(path.read_text())
    assert run.failed and len(run.errors) == 1
    # a refusal at once is asked again after a second, not a thousand times
    assert run.failed <= 4 * 8
