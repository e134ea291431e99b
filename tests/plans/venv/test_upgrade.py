"""upgrade, and rollback of a venv's engine: what is sent, in which order, what a failure leads to.

The host, its pip and its engine are stand-ins; the real ones are in
tests/system/venv and tests/unit/node.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from schema.plan import Plan
from tests.plans.support.doubles import Reply, completion, noted, row
from tests.plans.support.scenario import (
    ROOT,
    Ran,
    Runs,
    Scenario,
    Snapshots,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
)
from tests.plans.venv.test_venv_rig import NAME, half_done, hosts, serves
from tests.unit.builders import rigs
from tests.unit.builders.rigs import put

NEW = "0.33.0+cpu"
FOLDER = "/opt/engine/venvs/0.33.0"
KEPT = "20260530T065800Z-venv-1a2b"


def report(*packages: tuple[str, str]) -> str:
    """pip's dry-run report, slim."""
    items = [
        {"metadata": {"name": name, "version": version, "requires_dist": []},
         "download_info": {"url": f"file:///w/{name}-{version}-py3-none-any.whl"},
         "requested": name == "vllm"}
        for name, version in packages
    ]  # fmt: skip
    return json.dumps({"version": "1", "pip_version": "23", "environment": {}, "install": items})


def pip(**more: object) -> dict[str, object]:
    """What the host's pip says."""
    there = [{"name": name, "version": version, "path": "/x"}
             for name, version in (("vllm", "0.32.0+cpu"), ("torch", "2.13.0+cpu"))]  # fmt: skip
    return {
        "python": "/opt/engine/venv/bin/python", "pip": "23.0", "args": [], "installed": there,
        "torch_cuda": "", "wanted": report(("vllm", NEW), ("torch", "2.13.0+cpu")),
        "wanted_error": None, "old": report(("vllm", "0.32.0+cpu")), "old_error": None, **more,
    }  # fmt: skip


PLACE = {"venv": rigs.VENV, "real": rigs.TARGET, "link": rigs.TARGET, "installed": ["0.32.0+cpu"],
         "found": None, "folder": FOLDER, "partial": [], "free_bytes": 50 << 30,
         "working": []}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "wheels": pip(),
    "venv look": PLACE,
    "venv check": {"venv": FOLDER, "version": NEW, "said": NEW},
    "venv install": {"folder": FOLDER, "made": True, "left_behind": ["genesis"], "took_s": 195.0},
}


def scenario(
    *pairs: str, deploy: str = "upgrade", how: tuple[str, ...] = ("-y",),
    faults: dict[str, object] | None = None, answers: dict[str, Any] | None = None, **values: Any,
) -> Scenario:  # fmt: skip
    """A deploy on the tower, whose engine answers with 16 tokens."""
    said = {**ANSWERS, **(answers or {})}
    faults = {f"{NAME}:answers": said, f"{NAME}:backups": [row(KEPT)], **(faults or {})}

    def reply() -> Reply:
        return Reply({**completion(), "usage": {"completion_tokens": 16}}, late_s=0.2)

    return Scenario(
        (f"deploys/{deploy}.py", *how, *data(*pairs)), faults=faults, answers=reply,
        hosts=values.pop("hosts", hosts), seen=values.pop("seen", serves), **values,
    )  # fmt: skip


def down(plan: Plan) -> Snapshots:
    """The unit does not run."""
    return {NAME: put(serves(plan)[NAME], "units.0.active_state", "inactive")}


def error(text: str, code: str = "x") -> dict[str, str]:
    """A refusal of node's."""
    return {"error": text, "code": code}


def pruned(*removed: str) -> dict[str, object]:
    """What a prune answers: these folders go, the active one stays."""
    rows = [{"path": f"/opt/engine/venvs/{v}", "version": v, "bytes": 2 << 30,
             "why": "neither active nor former"} for v in removed]  # fmt: skip
    kept = [{"path": rigs.TARGET, "version": "0.32.0+cpu", "bytes": 1, "why": "the active version"}]
    return {"removed": rows, "kept": kept, "freed_bytes": 2 << 30, "dry": False}


MADE = tempfile.TemporaryDirectory(prefix="rigbook-upgrade-")
NIGHTLY = "0.32.0rc1.dev134+gfe9c3d6c5"


def of_a_candidate(address: str) -> list[Any]:
    """The tower with a recipe for a release candidate, which nobody ever released."""
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny-venv.yaml").read_text())
    recipe["venv"]["version"] = "0.32.0rc1"
    Path(MADE.name, "candidate.yaml").write_text(yaml.safe_dump(recipe))
    ((name, values),) = hosts(address)
    return [(name, {**values, "recipe": "candidate", "recipes_dir": [MADE.name]})]


TO = f"version={NEW}"
DRY = ("--dry", "--diff")
DIES: dict[str, object] = {f"{NAME}:start": "dies"}
GONE_ID = "20260101T000000Z-venv-0a0a"
GONE = "remove /opt/engine/venvs/0.33.0 (0.33.0, 2048 MiB): neither active nor former"
RESTORED = "write /etc/systemd/system/rigbook-engine.service, as recorded"


REFUSED: dict[str, object] = {f"{NAME}:says preflight": {
    "outcome": "refused", "said": "unrecognized arguments: --gone", "unsure": "", "took_s": 9.0,
}}  # fmt: skip


def on_tower(*steps: str) -> list[str]:
    """The steps with the host's name."""
    return [f"tower1 {step}" for step in steps]


def prune(*removed: str, how: tuple[str, ...] = ("-y",)) -> Scenario:
    """A prune that these versions fall to."""
    return scenario("prune=true", how=how, answers={"venv prune": pruned(*removed)})


def restore(backup: str = "last", *pairs: str, **more: Any) -> Scenario:
    """A rollback to a backup."""
    return scenario(f"backup={backup}", *pairs, deploy="rollback", **more)


TABLE = {
    "dry": (scenario(TO, how=DRY), quiet(
        f"vllm 0.32.0+cpu -> {NEW}, in {FOLDER}", "pip would install 2 distributions", "MiB free",
        f"backup: {KEPT}", "torch 2.13.0+cpu")),
    # it installs before it stops, and proves at the end
    "works": (scenario(TO), done(
        "write venv.version: 0.33.0+cpu into catalog/recipes/tiny-venv.yaml",
        "not carried over from the former: genesis",
        steps=on_tower("venv install", "apply stop", "apply link", "apply start",
                       "close COMMITTED"))),
    # the version that has come does not know a flag: what serves is never stopped
    "parser refuses": (scenario(TO, faults=REFUSED), failed(
        "vLLM itself refuses its command line: unrecognized arguments: --gone",
        "tests/plans/support/inventory.py deploys/upgrade.py", steps=on_tower("venv install"),
        never=("stop rigbook-engine.service\n    [@fake/tower1] Success",))),
    "in place": (scenario(TO, "inplace=true"), refused(
        "inplace: an upgrade in place is gone; leave it out")),
    # what goes and why, and once
    "prune": (prune("0.33.0"), done(
        GONE, f"keep {rigs.TARGET} (0.32.0+cpu): the active version", "2048 MiB freed",
        steps=on_tower("venv prune"))),
    "prune dry": (prune("0.33.0", how=DRY), quiet(GONE)),
    "prune nothing": (prune(), quiet()),
    "prune open": (scenario("prune=true", seen=half_done), refused("change-open")),
    "same": (scenario("version=0.32.0"), quiet()),
    "recipe": (scenario(), quiet()),
    # the nightly that serves is the recipe's version; pip has no wheel of either any more
    "nightly": (
        scenario(hosts=of_a_candidate, answers={"venv look": {**PLACE, "installed": [NIGHTLY]}}),
        quiet(f"leads to vllm {NIGHTLY} already")),
    # B1: a crash loop ends at two starts
    "dies": (scenario(TO, faults=DIES), failed("ROLLED_BACK", steps=on_tower(
        "venv install", "apply stop", "apply link", "apply start", "apply restart",
        "systemctl-stop", "undo"))),
    # what fails beside leaves the engine alone
    "no pip": (
        scenario(TO, faults={f"{NAME}:venv install": error("pip ended with 1")}),
        failed("pip ended with 1")),
    "broken": (
        scenario(TO, faults={f"{NAME}:venv check": error("ended with 1", "venv_broken")}),
        failed("ended with 1")),
    "no wheel": (
        scenario(TO, answers={"wheels": pip(wanted=None, wanted_error="none found")}),
        refused("wheel-missing")),
    "other torch": (
        scenario(TO, answers={"wheels": pip(
            wanted=report(("vllm", NEW), ("torch", "2.13.0+cu130")))}),
        refused("torch-variant")),
    "no room": (
        scenario(TO, answers={"venv look": {**PLACE, "free_bytes": 1 << 20}}),
        refused("no room beside")),
    "open": (scenario(TO, seen=half_done), refused("change-open")),
    "hostile": (scenario("version=-r/etc/passwd"), refused("is not a version")),
    "number": (scenario("version=0.50"), refused("was read as a number")),
    # not stopped and not measured
    "down": (scenario(TO, seen=down), done("the engine does not answer; baseline")),
    # the engine stops only once the backup lies beside, proven
    "restore": (restore(), done(RESTORED, steps=on_tower(
        "tree unpack", "apply stop", "tree restore", "apply start", "close COMMITTED"))),
    "restore no room": (
        restore(faults={f"{NAME}:tree unpack": error("no room in /opt/engine", "no_room")}),
        failed("no room in /opt/engine",
               never=("stop rigbook-engine.service\n    [@fake/tower1] Success",))),
    # undone first, without a start
    "restore open": (restore(KEPT, seen=half_done), done()),
    "restore dry": (restore(how=DRY), quiet(RESTORED)),
    "restored": (restore(faults={f"{NAME}:as-backup": True}), quiet()),
    # gone from the node, and its copy lies on a disk that is mounted there
    "restore a copy": (
        restore(GONE_ID, faults={f"{NAME}:keeps": [noted(GONE_ID)]}),
        done(f"{GONE_ID} is back from /mnt/disk, and whole", steps=on_tower(
            "tree take", "tree unpack", "apply stop", "tree restore", "apply start",
            "close COMMITTED"))),
    "restore a copy, dry": (
        restore(GONE_ID, how=DRY, faults={f"{NAME}:keeps": [noted(GONE_ID)]}),
        quiet(f"{GONE_ID} is gone from {NAME}: bring it back from /mnt/disk/rigbook/x/{GONE_ID}, "
              "800 MiB", f"unpack {GONE_ID} beside {rigs.VENV}; the engine goes on as it is")),
    "restore a copy, by its own runbook": (
        scenario(f"backup={GONE_ID}", "port=29690", deploy="restore",
                 faults={f"{NAME}:keeps": [noted(GONE_ID)]}),
        done(f"{GONE_ID} is back from /mnt/disk, and whole")),
    "restore a copy that rots": (
        restore(GONE_ID, faults={f"{NAME}:keeps": [noted(GONE_ID)],
                                 f"{NAME}:tree take": error("is not as it was recorded")}),
        failed("is not as it was recorded", steps=on_tower("tree take"))),
    "restore a copy that is away": (
        restore(GONE_ID, faults={f"{NAME}:keeps": [noted(GONE_ID, is_here=False)]}),
        refused(f"no backup {GONE_ID} of", f"not looked at: {GONE_ID} in /mnt/disk", "take=ID")),
    "unknown backup": (restore("20200101T000000Z-x-0000"), refused(
        "no backup 20200101T000000Z-x-0000", KEPT)),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def steps(run: Ran) -> list[str]:
    """The changing commands, without the host's name."""
    return [step.partition(" ")[2] for step in run.steps]


def test_an_upgrade_turns_the_link_and_keeps_what_it_needs_to_go_back(ran: Runs) -> None:
    link = next(c for c in ran["works"].changing if c.what == "apply link").request
    assert link["steps"] == [
        {"op": "link", "path": rigs.VENV, "target": FOLDER, "expect": rigs.TARGET}
    ]
    blob = link["change"]["blob"]
    assert (blob["from"], blob["to"], blob["backup"]) == ("0.32.0+cpu", NEW, {NAME: KEPT})
    assert len(blob["rounds"]) == 5 and min(blob["rounds"]) > 0


def test_the_version_that_is_there_changes_nothing(ran: Runs) -> None:
    for run in ran.each(("same", "recipe")):
        assert re.search(r"Grand total +\d+ +- +- +\d+", run.stderr), run.stderr


def test_the_reason_travels_into_the_journal(ran: Runs) -> None:
    reason = ran["dies"].changing[-1].request["reason"]
    assert "2 starts, and none came to an answer" in reason and "\n" not in reason


def test_an_engine_is_stopped_only_where_it_runs_and_has_to_go(ran: Runs) -> None:
    for name in ("no pip", "broken"):
        assert not {"apply stop", "undo", "systemctl-stop"} & set(steps(ran[name]))
    assert "apply stop" not in steps(ran["down"])


def test_a_backup_is_restored_as_a_change_of_its_own(ran: Runs) -> None:
    run = ran["restore"]
    request = next(c for c in run.changing if c.verb == "tree restore").request
    assert request["backup"] == KEPT and request["change"]["deploy"] == "restore"
    assert "venv check" in run.of(NAME)
    first = ran["restore open"]
    assert steps(first)[:3] == ["systemctl-stop", "undo", "tree restore"]
    assert next(c for c in first.changing if c.verb == "undo").request["start_units"] is False
