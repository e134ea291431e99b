"""A run that died: the same command run again takes up what it left open, and says so.

A run is dead when this machine knows that its process is gone, or when it gave no sign of life for
two minutes; a laptop that only slept then finds its change in other hands.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operations.run import operator
from schema.plan import UNIT, Plan
from tests.plans.cluster.test_libvgpu import SWAP, WANT
from tests.plans.cluster.test_libvgpu import run as libvgpu
from tests.plans.host.test_kernel import PIN, STAGED
from tests.plans.host.test_unit import BARE, DS4, SLEEP
from tests.plans.support import scenario
from tests.plans.support.doubles import ACCEPTED, Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    Table,
    bare,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
)
from tests.plans.venv.test_upgrade import scenario as upgrade
from tests.plans.venv.test_venv_rig import NAME, serves
from tests.unit.builders.host_parts import change
from tests.unit.builders.rigs import put

DEPLOYS = ("serve", "upgrade", "restart", "kernel", "unit", "stop", "patch", "libvgpu")
IDS = {deploy: f"20260530T065800Z-{deploy}-1a2b" for deploy in DEPLOYS}
BOTH = (HEAD, WORKER)
MILO = "milo@x"


def left(deploy: str, base: Seen = serving, on: tuple[str, ...] = BOTH, ago: float = 300,
         by: str = MILO, **elsewhere: str) -> Seen:  # fmt: skip
    """`base`, on which a run of `deploy` left its change open; its last sign is so many seconds
    old.
    """

    def make(plan: Plan) -> Snapshots:
        seen = dict(base(plan))
        for name, snapshot in seen.items():
            status = "OPEN" if name in on else elsewhere.get("other")
            if status is None:
                continue
            sign = snapshot.identity.clock_unix_s - ago
            row = change(status, id=IDS[deploy], deploy=deploy, operator=by, run="f00",
                         saved_unix_s=sign, beat_unix_s=sign)  # fmt: skip
            seen[name] = put(snapshot, "journal.changes", (row,))
        return seen

    return make


def again(deploy: str, seen: Seen, *pairs: str, how: str = "-y", **more: Any) -> Scenario:
    """The same command once more."""
    words = (f"deploys/{deploy}.py", how, *data(*pairs))
    return Scenario(words, seen, answers=more.pop("answers", Reply), **more)


# This machine's file of a killed run lies there, and nobody holds it; of a living one it is held.
KILLED, LIVES = (tempfile.TemporaryDirectory(prefix="rigbook-runs-") for _ in range(2))
for folder in (KILLED, LIVES):
    mine = Path(folder.name, "rigbook/runs", IDS["serve"])
    mine.parent.mkdir(parents=True)
    mine.touch()


@pytest.fixture(scope="module", autouse=True)
def _a_run_that_lives() -> Iterator[None]:
    fd = os.open(Path(LIVES.name, "rigbook/runs", IDS["serve"]), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


def here(folder: tempfile.TemporaryDirectory[str], ago: float) -> Scenario:
    """serve again, on the machine of the first run."""
    return again(
        "serve", left("serve", by=operator(), ago=ago), env={"XDG_STATE_HOME": folder.name}
    )


def taken(deploy: str) -> str:
    """What is said of it."""
    what = "undoes what is half done, and goes on in it"
    return f"takes up change {IDS[deploy]}, left open on {HEAD}, {WORKER} by {MILO}: {what}"


booted = scenario.broken(left("kernel", ago=10), (HEAD, "identity.boot_id", "b2"))
CLAIMS = ["lab1 claim", "lab2 claim"]
TABLE: Table = {
    "serve": (again("serve", left("serve")), done(taken("serve"), "COMMITTED")),
    "unit": (again("unit", left("unit", BARE), f"unit={DS4}", SLEEP), done(taken("unit"))),
    "kernel": (
        again("kernel", left("kernel"), PIN, kernels=dict.fromkeys(BOTH, STAGED)),
        done(taken("kernel"))),
    "upgrade": (
        upgrade(seen=left("upgrade", serves, (NAME,))), done(f"takes up change {IDS['upgrade']}")),
    "libvgpu": (libvgpu(*WANT, seen=left("libvgpu", bare, (HEAD,))), done(
        "undoes what is half done, and goes on in it", "a fresh process maps it",
        steps=["lab1 claim", SWAP, "lab1 close COMMITTED"])),
    "stop": (again("stop", left("stop")), done("goes on in it")),
    "restart": (again("restart", left("restart"), faults={
        f"{name}:answers": {"reap": {
            "verdict": "nothing", "ended": [], "spared": [], "ports": [], "evidence": "",
            "memory_before": {}, "memory_after": {}, "unit": None, "took_s": 0.1},
            "shm": {"removed": [], "kept": [], "changed": False},
            "caches": {"verdict": "nothing", "before": {}, "after": {}}} for name in BOTH}),
        done("goes on in it")),
    # nothing of it is taken up by another runbook, and not by one that may not
    "another": (again("stop", left("serve")), refused("change-open", "deploys/serve.py")),
    "patch": (again("watch", left("patch"), "webhook=http://127.0.0.9/x"), refused("change-open")),
    # alive: another operator, and a second window of one's own
    "alive": (again("serve", left("serve", ago=10)), refused(
        f"{MILO} may still be at work", "last sign of life 10 s ago",
        f"--data change={IDS['serve']}")),
    "alive here": (here(LIVES, 10), refused("may still be at work")),
    # killed on this machine: known at once
    "killed here": (here(KILLED, 1), done("COMMITTED")),
    # asleep on this machine for longer than a dead run is waited for
    "asleep here": (here(LIVES, 300), done("COMMITTED")),
    # the node booted meanwhile: a run that reboots it still says that it lives
    "booted": (again("kernel", booted, PIN, kernels=dict.fromkeys(BOTH, STAGED)), refused(
        "may still be at work")),
    "dry": (again("serve", left("serve"), how="--dry"), quiet(f"would first: {taken('serve')}")),
    # the automatic return died, or a node was down meanwhile: the rest of it goes back first
    "undone there": (again("serve", left("serve", on=(HEAD,), other="ROLLED_BACK")), done(
        f"change {IDS['serve']} went back on {WORKER} and is open on {HEAD}: undoes it there, too",
        "serving as the recipe says", steps=["lab1 claim", "lab1 undo"])),
    "undone there, dry": (
        again("serve", left("serve", on=(HEAD,), other="ROLLED_BACK"), how="--dry"),
        quiet(f"would first: change {IDS['serve']} went back on {WORKER}")),
    "undone there, not whole": (
        again("serve", left("serve", on=(HEAD,), other="ROLLED_BACK"), faults={
            f"{HEAD}:then undo": [{"error": "edited after the change: /x", "code": "later_edit"}]}),
        failed("was not taken up", "edited after the change: /x",
               steps=["lab1 claim", "lab1 undo", "lab1 beat"])),
    "half undone there": (again("serve", left("serve", on=(HEAD,), other="INCONSISTENT")), refused(
        f"OPEN on {HEAD} and INCONSISTENT on {WORKER}", f"change={IDS['serve']}")),
    # the proof came, and the run died between the two journals: nothing is undone
    "proven there": (again("serve", left("serve", on=(WORKER,), other="COMMITTED")), done(
        f"is proven on {HEAD} and open on {WORKER}: closes it there",
        "serving as the recipe says", steps=["lab2 close COMMITTED"])),
    "somebody was faster": (
        again("serve", left("serve"), faults={f"{HEAD}:then claim": [{
            "claimed": False, "status": "OPEN", "run": "b2", "operator": "anna@desk",
            "deploy": "serve", "quiet_s": 1.0}]}),
        failed(f"change {IDS['serve']} was not taken up: {HEAD}: it is anna@desk's (serve) by now",
               steps=["lab1 claim"])),
    # the dead run's last command: a stop takes 30 s
    "locked": (
        again("serve", left("serve"), faults={f"{HEAD}:then claim": [
            {"error": "the lock is held by pid 77 (apply serve)", "code": "locked"}]}),
        done(f"waits: {HEAD}: claim: the lock is held by pid 77 (apply serve): ")),
    # what was taken back, and cannot go on, is told with the way to what served before
    "blocked": (
        again("serve", left("serve", scenario.image_missing)),
        failed("first image-missing", f"change {IDS['serve']} was taken back and stays open",
               f"rollback.py -y --data change={IDS['serve']}",
               steps=[*CLAIMS, {"lab1 beat", "lab2 beat"}])),
    "parser refuses": (
        again("serve", left("serve"), faults={f"{HEAD}:says preflight": {
            **ACCEPTED, "outcome": "refused", "said": "unrecognized arguments: --x"}}),
        failed("first arguments-refused", f"change {IDS['serve']} was taken back and stays open",
               steps=[*CLAIMS, {"lab1 beat", "lab2 beat"}])),
    "edited": (
        again("serve", left("serve"), faults={f"{HEAD}:then claim": [
            {"error": "edited after the change: /x; nothing was undone", "code": "later_edit"}]}),
        failed("was not taken up", "edited after the change: /x", steps=["lab1 claim"])),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize("deploy", ["serve", "unit", "kernel", "stop", "restart"])
def test_the_same_change_goes_on_and_is_closed(ran: Runs, deploy: str) -> None:
    """By a run of its own: node refuses what the first one writes from here on."""
    sent = ran[deploy].changing
    claims = [c.request for c in sent if c.verb == "claim"]
    assert [c["former"] for c in claims] == ["f00", "f00"]
    assert {c["take_back"] for c in claims} == {deploy not in ("stop", "restart")}
    assert {tuple(c["keep"]) for c in claims} == {(UNIT,) if deploy == "serve" else ()}
    (token,) = {c["run"] for c in claims}
    headers = [c.request["change"] for c in sent if c.verb == "apply"]
    assert {(h["id"], h["run"]) for h in headers} == {(IDS[deploy], token)}
    closed = {(c.host, c.request["run"]) for c in sent if c.what == "close COMMITTED"}
    assert closed == {(HEAD, token), (WORKER, token)}


def test_the_engine_that_was_taken_back_starts_with_the_new_files(ran: Runs) -> None:
    """Not the former one first: that would cost its whole load."""
    steps = [step for step in ran["serve"].steps if "close" not in step]
    assert steps[:2] == CLAIMS and steps[-2:] == ["lab2 apply start", "lab1 apply start"]
    assert not [step for step in steps if "undo" in step]
