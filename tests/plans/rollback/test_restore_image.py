"""restore on a rig of containers: which backup each node gets, in which order; undone as one."""

from __future__ import annotations

from operations.change.ownership import operator
from schema.desired.plan import Plan
from tests.plans.support.engine_double import Reply
from tests.plans.support.rigs import Seen, broken, change_open
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Snapshots,
    data,
    serving,
    tiny_plan,
)
from tests.plans.support.table import Ends, done, each_row, failed, quiet, refused
from tests.plans.support.tree_double import image_row, kept, noted, of_image, row
from tests.unit.builders.host_parts import change

RESTORE = "deploys/restore.py"
NEW, OLD = "20260201T000000Z-vllm-cpu-0b0b", "20260101T000000Z-vllm-cpu-0a0a"
OTHERS, VENV = "20260101T000500Z-vllm-cpu-0c0c", "20260102T000000Z-venv-0d0d"
OLDER = "c" * 64
RESTORED = (
    "rigbook/vllm-cpu:0.32.0 (loaded, 13 s); write /etc/systemd/system/rigbook-engine.service"
)
# what the head has, and the other, whose ids are its own
HAVE: dict[str, object] = {
    f"{HEAD}:backups": [row(VENV), image_row(NEW), image_row(OLD, OLDER, created_unix_s=1.6e9)],
    f"{WORKER}:backups": [
        image_row("20260201T000000Z-vllm-cpu-1b1b"),
        image_row("20260102T000000Z-vllm-cpu-2b2b", OLDER, created_unix_s=1.65e9),
        image_row(OTHERS, OLDER, created_unix_s=1.6e9 + 300),
    ],
}  # fmt: skip
AS_IT_IS = {**HAVE, f"{HEAD}:as-backup": True, f"{WORKER}:as-backup": True}


def restore(
    *pairs: str, seen: Seen = serving, how: str = "-y", faults: dict[str, object] | None = None
) -> Scenario:
    """A run of restore."""
    words = (RESTORE, how, *data(*pairs))
    return Scenario(words, seen, faults=HAVE if faults is None else faults, answers=Reply)


def fault(**more: object) -> dict[str, object]:
    """What goes wrong on the worker."""
    return {**HAVE, **{f"{WORKER}:{key.replace('_', ' ')}": said for key, said in more.items()}}


def as_throughput(plan: Plan) -> Snapshots:
    """The pair as `serve --data profile=throughput` leaves it."""
    return serving(tiny_plan(str(plan.rig.head.lan_address), profile="throughput"))


CUT_OFF = "20260530T065800Z-restore-1a2b"
left_open = broken(serving, *(
    (name, "journal.changes", (change("OPEN", id=CUT_OFF, deploy="restore", operator=operator()),))
    for name in (HEAD, WORKER)))  # fmt: skip
NO_NAME = {"error": "x@sha256:1 is a name by digest", "code": "bad_request"}
ALL = [
    "lab2 open", "lab1 apply stop", "lab2 apply stop", {"lab1 image restore", "lab2 image restore"},
    "lab2 apply start", "lab1 apply start", {"lab1 close COMMITTED", "lab2 close COMMITTED"},
]  # fmt: skip
# the worker's own backup of the older image is gone; of the newer one it has its own
GONE = {**HAVE, f"{WORKER}:backups": [image_row("20260201T000000Z-vllm-cpu-1b1b")]}
FAR, FARTHER = OTHERS, "20251201T000000Z-vllm-cpu-0e0e"
THEIRS = kept(WORKER, FAR, **of_image(OLDER, 1.6e9 + 300))
OF_BEFORE = kept(WORKER, FARTHER, **of_image(OLDER, 1.5e9))
WITH_PEER = {**GONE, f"{HEAD}:keeps": [OF_BEFORE, THEIRS, kept(WORKER, VENV)]}
ON_DISK = {**GONE, f"{WORKER}:keeps": [noted(FAR, **of_image(OLDER))]}
ROTTEN = {"error": "is not as it was recorded", "code": "copy_damaged"}
REST = ["lab1 apply stop", "lab2 apply stop", {"lab1 image restore", "lab2 image restore"},
        "lab2 apply start", "lab1 apply start",
        {"lab1 close COMMITTED", "lab2 close COMMITTED"}]  # fmt: skip
TABLE = {
    # gone from the worker: its own copy of the same image, the nearest in time
    "from a node, dry": (restore(f"backup={OLD}", how="--dry", faults=WITH_PEER), quiet(
        f"{FAR} is gone from {WORKER}: bring it back from {HEAD}, out of bond0, 800 MiB",
        f"bring rigbook/vllm-cpu:0.32.0 back from {FAR}", never=(FARTHER,))),
    "from a node": (restore(f"backup={OLD}", faults=WITH_PEER), done(
        f"[{WORKER}] {FAR} is back from {HEAD}, and whole", f"{FAR} is back: ",
        steps=[{"lab1 tree offer", "lab2 tree receive"}, "lab2 open", *REST])),
    "from a node, by its own id": (restore(f"backup={FARTHER}", faults=WITH_PEER), done(
        f"{FARTHER} is back from {HEAD}", f"{OLD} is back: ")),
    "from a node, by rollback": (
        Scenario(("deploys/rollback.py", "-y", *data(f"backup={OLD}")), faults=WITH_PEER,
                 answers=Reply),
        done(f"[{WORKER}] {FAR} is back from {HEAD}, and whole")),
    "from a node, broken off": (
        restore(f"backup={OLD}", faults={**WITH_PEER, f"{WORKER}:tree receive": ROTTEN}),
        Ends(1, None, ("is not as it was recorded",), ("Stop the head | Success", "apply stop"))),
    "from a node whose copy is damaged": (
        restore(f"backup={OLD}", faults={**GONE, f"{HEAD}:keeps": [{**THEIRS, "problem": "x"}]}),
        refused(f"{WORKER}: no verified backup of the image of {OLD}")),
    "from a disk": (restore(f"backup={OLD}", faults=ON_DISK), done(
        f"{FAR} is back from /mnt/disk, and whole",
        steps=["lab2 tree take", "lab2 open", *REST])),
    "from a disk, dry": (restore(f"backup={OLD}", how="--dry", faults=ON_DISK), quiet(
        f"{FAR} is gone from {WORKER}: bring it back from /mnt/disk/rigbook/x/{FAR}, 800 MiB")),
    "from a disk that rots": (
        restore(f"backup={OLD}", faults={**ON_DISK, f"{WORKER}:tree take": ROTTEN}),
        failed("is not as it was recorded", steps=["lab2 tree take"])),
    # `take` brings none over one that is here: what is wrong with that one is to be seen first
    "from a node, here and not usable": (
        restore(f"backup={OLD}", faults={**WITH_PEER, f"{WORKER}:backups": [
            image_row(FAR, OLDER, problem="x")], f"{HEAD}:keeps": [THEIRS]}),
        refused(f"{WORKER}: no verified backup of the image of {OLD}")),
    # noted is not seen
    "from a disk that is not there": (
        restore(f"backup={OLD}", faults={**GONE, f"{WORKER}:keeps": [noted(FAR, is_here=False)]}),
        refused(f"{WORKER}: no verified backup of the image of {OLD}",
                f"not looked at: {FAR} in /mnt/disk/rigbook/x/{FAR}")),
    "from outside": (restore(f"backup={OLD}", "from=sftp://nas/rig", faults=GONE), refused("from")),
    "dry": (restore(how="--dry"), quiet(
        f"restore {NEW}: 2 h old", f"bring rigbook/vllm-cpu:0.32.0 back from {NEW}")),
    "last": (restore(), done(
        RESTORED, f"backup {NEW} serves: ", "no baseline for balanced: its speed was not compared",
        steps=ALL)),
    "last, another profile": (restore(seen=as_throughput), done(
        f"backup {NEW} serves: ", "no baseline for throughput: ")),
    "by id": (restore(f"backup={OLD}"), done(f"{OLD} is back", f"{OTHERS} is back", steps=ALL)),
    "by rollback": (
        Scenario(("deploys/rollback.py", "-y", *data(f"backup={OLD}")), faults=HAVE, answers=Reply),
        done(f"{OLD} is back", steps=ALL)),
    "as it is": (restore(faults=AS_IT_IS), quiet()),
    "one differs": (restore(faults={**AS_IT_IS, f"{WORKER}:as-backup": False}), done(steps=[
        "lab2 open", "lab1 apply stop", "lab2 apply stop", "lab2 image restore",
        "lab2 apply start", "lab1 apply start", {"lab1 close COMMITTED", "lab2 close COMMITTED"}])),
    "a venv's": (restore(f"backup={VENV}"), refused(f"no backup {VENV} of an image")),
    "unknown": (restore("backup=20200101T000000Z-x-0000"), refused("no backup 20200101T000000Z-x")),
    "none": (restore(faults={}), refused("no backup last of an image that can be used")),
    "on one node alone": (
        restore(faults={f"{HEAD}:backups": [image_row(NEW)]}),
        refused(f"{WORKER}: no verified backup of the image of {NEW}", )),
    "open": (restore(seen=change_open), refused("change-open")),
    # a run that died: its change goes on, and so does one that had nothing left to do but the proof
    "left open": (restore(seen=left_open), done(
        f"takes up change {CUT_OFF}, left open on @fake/lab1, @fake/lab2",
        f"change {CUT_OFF} COMMITTED")),
    "left open at its end": (restore(seen=left_open, faults=AS_IT_IS), done(steps=[
        {"lab1 claim", "lab2 claim"}, {"lab1 close COMMITTED", "lab2 close COMMITTED"}])),
    "cannot be named": (restore(faults=fault(image_restore=NO_NAME)), refused("a name by digest")),
    "dies": (restore(faults=fault(start="dies")), failed("ROLLED_BACK")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_each_node_gets_the_same_image(ran: Runs) -> None:
    """The nearest in time of those with that content: its files are of the same days."""
    asked = {c.host: c.request for c in ran["by id"].changing if c.verb == "image restore"}
    assert {host: request["backup"] for host, request in asked.items()} == {
        HEAD: OLD, WORKER: OTHERS}  # fmt: skip
    assert {request["change"]["deploy"] for request in asked.values()} == {"restore"}
