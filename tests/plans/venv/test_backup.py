"""backup on stand-in hosts: what is sent, what is refused; a second run changes nothing."""

from __future__ import annotations

import json

from schema.plan import Plan
from tests.plans.support.doubles import kept, row
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Ends,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    broken,
    change_open,
    data,
    done,
    each_row,
    failed,
    locked,
    quiet,
    refused,
    serving,
    tiny_plan,
)

BACKUP = "deploys/backup.py"
TREE = "tree=/opt/engine/venv"
OLD, NEW = "20260101T000000Z-venv-0a0a", "20260201T000000Z-venv-0b0b"


def have(*rows: dict[str, object]) -> dict[str, object]:
    """These backups on both hosts, newest first."""
    return {f"{name}:backups": list(rows) for name in (HEAD, WORKER)}


ERROR = {"error": "changed while it was read: x was edited", "code": "tree_changing"}
NO_PEER = {"error": "nobody answers", "code": "no_peer"}
DAMAGED = {"error": "its sha256 is another one", "code": "backup_damaged"}


def backup(
    *pairs: str, seen: Seen = serving, how: str = "-y", faults: dict[str, object] | None = None
) -> Scenario:
    """A run of backup."""
    return Scenario((BACKUP, how, *data(*pairs)), seen, faults=faults or {})


def as_throughput(plan: Plan) -> Snapshots:
    """The pair as `serve --data profile=throughput` leaves it."""
    return serving(tiny_plan(str(plan.rig.head.lan_address), profile="throughput"))


BOTH = have(row(NEW), row(OLD))
firewall = broken(serving, (HEAD, "network.reach.0.state", "filtered"))
DRY = "back up /opt/engine/venv: vLLM 0.27.0, torch 2.8.0, cuda 12.8; 77492"
TABLE = {
    "dry": (backup(TREE, how="--dry"), quiet(*(f"[{name}] {DRY}" for name in (HEAD, WORKER)))),
    "first": (backup(TREE), done("is whole: 77492 members")),
    "again": (
        backup(TREE, faults=have(row(NEW))),
        quiet(f"{NEW} is verified and holds the same files")),
    "changing": (backup(TREE, faults={f"{WORKER}:tree backup": ERROR}), failed("x was edited")),
    "damaged": (
        backup(TREE, faults={f"{HEAD}:tree verify": DAMAGED}), failed("its sha256 is another one")),
    "odd": (backup("tree=/opt/a;touch x"), done()),
    "of a container": (backup(), refused("no image is backed up on a node", "save=/DIR")),
    "of a container, restored": (
        Scenario(("deploys/restore.py", "-y")), refused("no image is restored", "archive=/PATH")),
    "of a container, restored by rollback": (
        Scenario(("deploys/rollback.py", "-y", *data(f"backup={OLD}"))),
        refused("no image is restored", "deploys/rollback.py -y --data change=ID")),
    "of another profile": (backup(TREE, seen=as_throughput), done("is whole: 77492 members")),
    "open": (backup(TREE, seen=change_open), refused("change-open")),
    "locked": (backup(TREE, seen=locked), refused("lock-held")),
    "list": (
        backup("list=true", faults=have(
            row(NEW, verified=False), row(OLD, problem="its sha256 is another one"))),
        quiet(f"[{HEAD}] {NEW}: 2 h old, /opt/engine/venv, vLLM 0.27.0",
              "800 MiB of 3072, not verified", "NOT USABLE: its sha256 is another one")),
    # a host says what it likes: no escape and no line of its own reaches the terminal
    "list, forged": (
        backup("list=true", faults=have(row(
            f"{OLD}\x1b[2J", problem="gone\nmend: rm", tree="/opt/\x1b]0;x\x07venv"))),
        quiet(f"{OLD}?[2J: ", "gone mend: rm", never=("\x1b[2J", "\x1b]0", "\nmend: "))),
    "copied, forged": (
        backup(TREE, "to=/mnt/disk", faults={**BOTH, f"{HEAD}:answers": {"tree copy": {
            "backup": NEW, "place": "/mnt\x1b[2J", "made": True, "bytes": 1, "took_s": 9.0}}}),
        done("read back in /mnt?[2J", never=("\x1b[2J",))),
    "back from a node for a host with an odd name": (
        backup(f"take={OLD}", faults={f"{WORKER}:keeps": [kept("x;id", OLD)]}),
        refused("sudo hostnamectl set-hostname 'x;id'")),
    "list none": (backup("list=true"), quiet(f"[{WORKER}] no backup")),
    "verify": (
        backup(f"verify={OLD}", faults=BOTH),
        done(steps=[{"lab1 tree verify", "lab2 tree verify"}])),
    "verify all": (backup("verify=all", faults=BOTH), done()),
    "verify unknown": (
        backup(f"verify={OLD}", faults=have(row(NEW))), refused(f"no node has a backup {OLD}")),
    "copy dry": (
        backup(TREE, "to=/mnt/disk", how="--dry", faults=BOTH), quiet(f"copy {NEW} to /mnt/disk")),
    "copy": (
        backup(TREE, "to=/mnt/disk", faults=BOTH),
        done(f"{NEW} copied, and read back in /mnt/disk/rigbook/stand-in/{NEW}: 800 MiB, 9.0 s",
             steps=[{"lab1 tree copy", "lab2 tree copy"}])),
    "copy none": (
        backup(TREE, "to=/mnt/disk", faults=have(row(NEW, verified=False))),
        refused("no verified backup of /opt/engine/venv to copy")),
    "list copies": (
        backup("list=true", faults=have(
            row(NEW, copies=[{"place": "/mnt/disk/x", "unix_s": 1.7e9}]))),
        quiet(", verified", "; copy in /mnt/disk/x, read 2023-11-14")),
    "take": (
        backup(f"take={OLD}", "from=/mnt/disk", faults=have(row(NEW))),
        done(f"{OLD} is back from /mnt/disk, and whole",
             steps=[{"lab1 tree take", "lab2 tree take"}])),
    "take, there": (backup(f"take={NEW}", faults=have(row(NEW))), quiet()),
    "to a node, dry": (
        backup(TREE, f"to={WORKER}", how="--dry", faults=BOTH),
        quiet(f"[{HEAD}] copy {NEW} to {WORKER}, out of bond0, or read the copy back there")),
    "to a node": (
        backup(TREE, f"to={WORKER}", faults=BOTH),
        done(f"[{WORKER}] {NEW} copied, and read back in /kept/{HEAD}/{NEW}: 838.9 MB, 9.0 s",
             steps=[{"lab1 tree offer", "lab2 tree receive"}, "lab1 tree note"])),
    "to a node, broken off": (
        backup(TREE, f"to={WORKER}", faults={**BOTH, f"{WORKER}:tree receive": NO_PEER}),
        Ends(1, steps=None, says=("nobody answers",), never=("tree note",))),
    "to no node": (backup(TREE, "to=lab9"), refused("to=lab9: no such node; the rig has")),
    "to a node, nothing there": (
        backup(TREE, f"to={WORKER}"), refused("no verified backup of /opt/engine/venv to copy")),
    "to a node behind a firewall": (
        backup(TREE, f"to={HEAD}", seen=firewall, faults=BOTH), refused("transfer-way")),
    "back from a node": (
        backup(f"take={OLD}", faults={**have(row(NEW)), f"{WORKER}:keeps": [kept(HEAD, OLD)]}),
        done(f"[{HEAD}] {OLD} is back from {WORKER}, and whole",
             steps=[{"lab1 tree receive", "lab2 tree offer"}])),
    "back from a node that is named": (
        backup(f"take={OLD}", f"from={WORKER}", how="--dry",
               faults={f"{WORKER}:keeps": [kept(HEAD, OLD)]}),
        quiet(f"[{HEAD}] bring {OLD} back from {WORKER}, out of bond0")),
    "back from a node without it": (
        backup(f"take={OLD}", f"from={WORKER}", faults={f"{WORKER}:keeps": [kept(HEAD, NEW)]}),
        refused(f"{WORKER} keeps no whole copy of {OLD}; it keeps: {NEW}")),
    "back from a node for a host that is called otherwise now": (
        backup(f"take={OLD}", faults={f"{WORKER}:keeps": [kept("spark-a", OLD)]}),
        refused(f"{WORKER} keeps {OLD} for a host called spark-a", "hostnamectl")),
    "back from a node, on the node that it is of": (
        backup(f"take={OLD}", f"from={WORKER}", faults={f"{HEAD}:backups": [row(OLD)],
                                                        f"{WORKER}:keeps": [kept(HEAD, OLD)]}),
        quiet()),
    "back from a node, here": (
        backup(f"take={OLD}", f"from={WORKER}",
               faults={**BOTH, f"{WORKER}:keeps": [kept(HEAD, OLD)]}), quiet()),
    # what another program does better: one line says which, before any host is asked
    **{f"out of the rig: {key}={place}": (backup(TREE, f"{key}={place}", faults=BOTH), refused(
        f"--data: {key}: '{place}' is outside the rig; ", "restic or rclone",
        "docs/runbooks/backup.md"))
       for key, place in (("to", "sftp://nas/rig"), ("to", "operator:/srv/copies"),
                          ("from", "sftp://nas/rig"), ("to", "sftp:nas"))},
    "encrypted for somebody": (
        backup(TREE, "to=/mnt/disk", "recipient=age1x"),
        refused("recipient: encrypted copies are gone")),
    "each week": (backup("weekly=true"), refused("weekly: the weekly timer is gone; ")),
    "prune dry": (
        backup("prune=true", "keep=1", how="--dry", faults=BOTH), quiet(f"remove backup {OLD}")),
    "prune": (
        backup("prune=true", "keep=1", faults=BOTH),
        done(steps=[{"lab1 tree prune", "lab2 tree prune"}])),
    "prune nothing": (backup("prune=true", faults=have(row(NEW))), quiet()),
    **{pair: (backup(pair), refused(pair.partition("=")[0]))
       for pair in ("tree=venv", "tree=-rf", "keep=0", "keep=-1", "verify=$(id)", "verify=-rf",
                    "prune=perhaps", "to=./disk", "take=$(id)", "from=x/y")},
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_every_backup_is_read_back(ran: Runs) -> None:
    first = ran["first"]
    for name in ("lab1", "lab2"):
        mine = [step for step in first.steps if step.startswith(name)]
        assert mine == [f"{name} tree backup", f"{name} tree verify"]
    sent = next(c for c in first.changing if c.verb == "tree backup").request
    assert sent["documents"]["recipe"]["name"] == "tiny" and sent["documents"]["rendered"]
    # an update of rigbook alone is no reason for another backup of the same files
    assert "rignode-" not in json.dumps(sent["documents"])
    assert "/etc/systemd/system/rigbook-engine.service" in sent["files"]
    assert ran["verify all"].steps.count("lab1 tree verify") == 2


def test_an_odd_path_stays_one_argument(ran: Runs) -> None:
    commands = ran["odd"].commands
    assert all("touch" not in command.raw for command in commands)
    asked = [c.request["tree"] for c in commands if c.verb == "tree backup"]
    assert set(asked) == {"/opt/a;touch x"} and len(asked) == 4


def test_it_keeps_the_profile_that_runs(ran: Runs) -> None:
    """Its rendered files are of the same profile: not of the one that a serve would ask for."""
    for name, profile, seqs in (("first", "balanced", 4), ("of another profile", "throughput", 8)):
        for sent in (c for c in ran[name].changing if c.verb == "tree backup"):
            documents = sent.request["documents"]
            assert documents["profile"] == profile
            words = documents["argv"]
            assert words[words.index("--max-num-seqs") + 1] == str(seqs)
