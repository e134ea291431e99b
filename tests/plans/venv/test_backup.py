"""backup on stand-in hosts: what is sent, what is refused; a second run changes nothing."""

from __future__ import annotations

import json

from tests.plans.support.rigs import Seen, change_open, locked
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, data, serving
from tests.plans.support.table import done, each_row, failed, quiet, refused
from tests.plans.support.tree_double import row

BACKUP = "deploys/backup.py"
TREE = "tree=/opt/engine/venv"
OLD, NEW = "20260101T000000Z-venv-0a0a", "20260201T000000Z-venv-0b0b"


def have(*rows: dict[str, object]) -> dict[str, object]:
    """These backups on both hosts, newest first."""
    return {f"{name}:backups": list(rows) for name in (HEAD, WORKER)}


ERROR = {"error": "changed while it was read: x was edited", "code": "tree_changing"}
DAMAGED = {"error": "its sha256 is another one", "code": "backup_damaged"}


def backup(
    *pairs: str, seen: Seen = serving, how: str = "-y", faults: dict[str, object] | None = None
) -> Scenario:
    """A run of backup."""
    return Scenario((BACKUP, how, *data(*pairs)), seen, faults=faults or {})


BOTH = have(row(NEW), row(OLD))
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
    "container": (backup(), refused("runs in a container: no venv to back up")),
    "open": (backup(TREE, seen=change_open), refused("change-open")),
    "locked": (backup(TREE, seen=locked), refused("lock-held")),
    "list": (
        backup("list=true", faults=have(
            row(NEW, verified=False), row(OLD, problem="its sha256 is another one"))),
        quiet(f"[{HEAD}] {NEW}: 2 h old, /opt/engine/venv, vLLM 0.27.0",
              "800 MiB of 3072, not verified", "NOT USABLE: its sha256 is another one")),
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
            row(NEW, base=OLD, copies=[{"place": "/mnt/disk/x", "unix_s": 1.7e9}]))),
        quiet(f"beside {OLD}, verified", "; copy in /mnt/disk/x, read 2023-11-14")),
    "take": (
        backup(f"take={OLD}", "from=/mnt/disk", faults=have(row(NEW))),
        done(f"{OLD} is back from /mnt/disk, and whole",
             steps=[{"lab1 tree take", "lab2 tree take"}])),
    "take, there": (backup(f"take={NEW}", faults=have(row(NEW))), quiet()),
    "prune dry": (
        backup("prune=true", "keep=1", how="--dry", faults=BOTH), quiet(f"remove backup {OLD}")),
    "prune": (
        backup("prune=true", "keep=1", faults=BOTH),
        done(steps=[{"lab1 tree prune", "lab2 tree prune"}])),
    "prune nothing": (backup("prune=true", faults=have(row(NEW))), quiet()),
    **{pair: (backup(pair), refused(pair.partition("=")[0]))
       for pair in ("tree=venv", "tree=-rf", "keep=0", "keep=-1", "verify=$(id)", "verify=-rf",
                    "prune=perhaps", "to=disk", "take=$(id)", "from=x")},
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
