"""A rig of four is served, stopped, restarted and taken back as one."""

from __future__ import annotations

import atexit
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from schema.load import plan
from schema.plan import Plan
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    ROOT,
    Ends,
    Runs,
    Scenario,
    Snapshots,
    data,
    done,
    each_row,
    failed,
    host,
    quiet,
    serving,
)
from tests.unit.builders.rigs import healthy, put, recipe_over

MADE = TemporaryDirectory(prefix="rigbook-four-")
atexit.register(MADE.cleanup)
OF_FOUR = recipe_over(Path(MADE.name), "tiny")
NAMES = tuple(f"@fake/lab{n}" for n in (1, 2, 3, 4))
HEAD, *WORKERS = NAMES


def four(address: str) -> list[Any]:
    """The hosts: a head and three workers."""
    return [
        (name, host(n, address, **OF_FOUR, rank=n - 1)) for n, name in enumerate(NAMES, start=1)
    ]


def of(state: Any, *changes: tuple[str, str, Any]) -> Any:
    """The four in a state, with (node, path, value) replaced."""

    def make(two: Plan) -> Snapshots:
        made = plan(dict(four(str(two.rig.head.lan_address))), None, ROOT)
        seen = dict(state(made))
        for node, path, value in changes:
            seen[node] = put(seen[node], path, value)
        return seen

    return make


MANY = recipe_over(Path(MADE.name) / "64", "tiny", 64)


def sixty_four(address: str) -> list[Any]:
    """More hosts than pyinfra begins with by itself on a machine of two or three cores."""
    rows = []
    for n in range(1, 65):
        more = {} if n == 1 else {"lan_address": f"127.0.1.{n}"}
        rows.append((f"@fake/lab{n}", host(n, address, **MANY, rank=n - 1, **more)))
    return rows


def all_serve(two: Plan) -> Snapshots:
    """Each of the sixty-four as serve leaves it."""
    return dict(serving(plan(dict(sixty_four(str(two.rig.head.lan_address))), None, ROOT)))


def on(words: str, what: str) -> set[str]:
    """The same step on the hosts with these numbers."""
    return {f"lab{n} {what}" for n in words}


NOTHING: dict[str, object] = {
    "verdict": "nothing", "ended": [], "spared": [], "ports": [], "evidence": "",
    "memory_before": {}, "memory_after": {}, "unit": None, "took_s": 0.1,
}  # fmt: skip
ANSWERS = {"reap": NOTHING, "shm": {"removed": [], "kept": [], "changed": False},
           "caches": {"verdict": "nothing", "before": {}, "after": {}}}  # fmt: skip
SERVE, STOP, RESTART = (("deploys/serve.py", "-y"), ("deploys/stop.py", "-y"),
                        ("deploys/restart.py", "-y"))  # fmt: skip
LACKING = [(name, path, value) for name in WORKERS
           for path, value in (("weights.0.exists", False), ("weights.0.files", ()))]  # fmt: skip
FILES = on("1234", "apply file+unit")
STARTS = [on("234", "apply start"), "lab1 apply start"]
CLOSED = on("1234", "close COMMITTED")


def scenario(words: tuple[str, ...], seen: Any, **more: Any) -> Scenario:
    return Scenario(words, seen, hosts=four, answers=Reply, **more)


TABLE = {
    # the three workers at the same time, then the head; one answer blesses all four
    "fresh": (scenario(SERVE, of(healthy)), done(
        *(f"[{name}] Success" for name in NAMES), steps=[FILES, *STARTS, CLOSED])),
    "as it should": (scenario(SERVE, of(serving)), quiet("serving as the recipe says")),
    "sixty-four": (
        Scenario(SERVE, all_serve, hosts=sixty_four, answers=Reply),
        quiet("serving as the recipe says")),
    "stop": (scenario(STOP, of(serving), faults={
        f"{name}:answers": ANSWERS for name in NAMES}), done(
        f"stopped on {', '.join(NAMES)}", steps=[
            on("234", "open"), "lab1 apply stop", on("234", "apply stop"), on("1234", "shm"),
            CLOSED])),
    "profile": (scenario((*SERVE, *data("profile=throughput")), of(serving)), done(
        steps=[FILES, "lab1 apply stop", on("234", "apply stop"), *STARTS, CLOSED])),
    "restart": (scenario(RESTART, of(serving), faults={
        f"{name}:answers": ANSWERS for name in NAMES}), done()),
    # one of four lacks the image: nothing happens on any
    "one lacks": (scenario(SERVE, of(healthy, (NAMES[2], "docker.images", ()))), Ends(
        None, (), ("image-missing",), last=("1 finding(s) block", f"on {NAMES[2]}"))),
    # the third cannot start: all four go back
    "third fails": (
        scenario(SERVE, of(healthy), faults={
            f"{NAMES[2]}:apply start": {"error": "systemctl start: failed", "code": "unit"}}),
        failed("apply: systemctl start: failed", "ROLLED_BACK; no engine ran before",
               "none runs now")),
    # whoever has all of it gives: two rounds, in place of three times the giver's link
    "weights": (
        scenario(("deploys/weights.py", "-y"), of(healthy, *LACKING)),
        done("round 2 of 2", steps=[
            {"lab1 weights offer", "lab2 weights receive"},
            {"lab1 weights offer", "lab3 weights receive", "lab2 weights offer",
             "lab4 weights receive"},
            on("234", "close COMMITTED")])),
    "weights of two": (
        scenario(("deploys/weights.py", "-y"), of(healthy, *LACKING[2:])),
        done(steps=[{"lab1 weights offer", "lab3 weights receive", "lab4 weights receive"},
                    on("34", "close COMMITTED")])),
    "fabric": (
        scenario(("deploys/fabric.py", "-y"), of(healthy), faults={
            **{f"{name}:says rate receive": {"gbit_s": 17.0} for name in WORKERS},
            f"{HEAD}:says rate send": {"gbit_s": None}}),
        quiet(*(f"[{HEAD} -> {name}, bond0] 17.0 Gbit/s" for name in WORKERS),
              *(f"[{NAMES[3]}] to {name} 10.0.0." for name in NAMES[:3]))),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_all_four_go_back_and_the_head_never_starts(ran: Runs) -> None:
    steps = ran["third fails"].steps
    assert {step for step in steps if "undo" in step} == on("1234", "undo")
    assert "lab1 apply start" not in steps


def test_a_restart_ends_with_the_head(ran: Runs) -> None:
    """Down from the head, up to the head."""
    steps = [s for s in ran["restart"].steps if s.split()[1:2] == ["apply"]]
    assert steps[0] == "lab1 apply stop" and steps[-1] == "lab1 apply start"
    assert set(steps[1:4]) == on("234", "apply stop")
    assert set(steps[4:-1]) == on("234", "apply start")
