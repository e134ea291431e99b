"""upgrade, and rollback of a venv's engine: what is sent, in which order, what a failure leads to.

The host, its pip and its engine are stand-ins; the real ones are in
tests/system/venv and tests/unit/node.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from schema.desired.plan import Plan
from tests.plans.support.engine_double import Reply, completion
from tests.plans.support.scenario import Ran, Runs, Scenario, Snapshots
from tests.plans.support.tree_double import row
from tests.plans.venv.test_venv_rig import NAME, half_done, hosts, serves
from tests.unit.builders import tower_rig as t
from tests.unit.builders.snapshots import put

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


PLACE = {"venv": t.VENV, "real": t.TARGET, "link": t.TARGET, "installed": ["0.32.0+cpu"],
         "found": None, "folder": FOLDER, "partial": [], "free_bytes": 50 << 30,
         "working": []}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "wheels": pip(),
    "venv look": PLACE,
    "venv check": {"venv": FOLDER, "version": NEW, "said": NEW},
    "venv replace": {"folder": t.TARGET, "made": True, "left_behind": [], "took_s": 40.0},
    "venv install": {"folder": FOLDER, "made": True, "left_behind": ["genesis"], "took_s": 195.0},
}


def scenario(
    *words: str, deploy: str = "upgrade", faults: dict[str, object] | None = None,
    answers: dict[str, Any] | None = None, **values: Any,
) -> Scenario:  # fmt: skip
    """A deploy on the tower, whose engine answers with 16 tokens."""
    said = {**ANSWERS, **(answers or {})}
    faults = {f"{NAME}:answers": said, f"{NAME}:backups": [row(KEPT)], **(faults or {})}

    def reply() -> Reply:
        return Reply({**completion(), "usage": {"completion_tokens": 16}}, late_s=0.02)

    return Scenario(
        (f"deploys/{deploy}.py", *words), hosts=hosts, faults=faults, answers=reply,
        seen=values.pop("seen", serves), **values,
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
    kept = [{"path": t.TARGET, "version": "0.32.0+cpu", "bytes": 1, "why": "the active version"}]
    return {"removed": rows, "kept": kept, "freed_bytes": 2 << 30, "dry": False}


IN_PLACE = ("--data", "inplace=true")
UP = ("-y", "--data", f"version={NEW}")
SCENARIOS = {
    "dry": scenario("--dry", "--diff", "--data", f"version={NEW}"),
    "works": scenario(*UP),
    "in place": scenario(*UP, *IN_PLACE),
    "in place dry": scenario("--dry", "--data", f"version={NEW}", *IN_PLACE),
    "in place dies": scenario(*UP, *IN_PLACE, faults={f"{NAME}:start": "dies"}),
    "in place no pip": scenario(
        *UP, *IN_PLACE, faults={f"{NAME}:venv replace": error("pip ended with 1", "install_failed")}
    ),
    "in place same": scenario("-y", "--data", "version=0.32.0", *IN_PLACE),
    "prune": scenario("-y", "--data", "prune=true", answers={"venv prune": pruned("0.33.0")}),
    "prune dry": scenario(
        "--dry", "--data", "prune=true", answers={"venv prune": pruned("0.33.0")}
    ),
    "prune nothing": scenario("-y", "--data", "prune=true", answers={"venv prune": pruned()}),
    "prune open": scenario("-y", "--data", "prune=true", seen=half_done),
    "same": scenario("-y", "--data", "version=0.32.0"),
    "recipe": scenario("-y"),
    "dies": scenario(*UP, faults={f"{NAME}:start": "dies"}),
    "no pip": scenario(*UP, faults={f"{NAME}:venv install": error("pip ended with 1")}),
    "broken": scenario(*UP, faults={f"{NAME}:venv check": error("ended with 1", "venv_broken")}),
    "no wheel": scenario(*UP, answers={"wheels": pip(wanted=None, wanted_error="none found")}),
    "other torch": scenario(
        *UP, answers={"wheels": pip(wanted=report(("vllm", NEW), ("torch", "2.13.0+cu130")))}
    ),
    "no room": scenario(*UP, answers={"venv look": {**PLACE, "free_bytes": 1 << 20}}),
    "open": scenario(*UP, seen=half_done),
    "hostile": scenario("-y", "--data", "version=-r/etc/passwd"),
    "number": scenario("-y", "--data", "version=0.50"),
    "down": scenario(*UP, seen=down),
    "restore": scenario("-y", "--data", "backup=last", deploy="rollback"),
    "restore open": scenario(
        "-y", "--data", f"backup={KEPT}", deploy="rollback", seen=half_done
    ),
    "restore dry": scenario("--dry", "--data", "backup=last", deploy="rollback"),
    "restored": scenario(
        "-y", "--data", "backup=last", deploy="rollback", faults={f"{NAME}:as-backup": True}
    ),
    "unknown backup": scenario("-y", "--data", "backup=20200101T000000Z-x-0000", deploy="rollback"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def steps(run: Ran) -> list[str]:
    """The changing commands, without the host's name."""
    return [step.partition(" ")[2] for step in run.steps]


def test_dry_shows_versions_pips_plan_backup_and_room(ran: Runs) -> None:
    run = ran["dry"]
    assert run.status == 0 and run.changing == (), run.output
    assert f"vllm 0.32.0+cpu -> {NEW}, in {FOLDER}" in run.stderr
    assert "pip would install 2 distributions" in run.stderr and "MiB free" in run.stderr
    assert f"backup: {KEPT}" in run.stderr and "torch 2.13.0+cpu" in run.stderr


def test_the_order_installs_before_it_stops_and_proves_at_the_end(ran: Runs) -> None:
    run = ran["works"]
    assert run.status == 0, run.output
    assert steps(run) == [
        "venv install", "apply stop", "apply link", "apply start", "close COMMITTED",
    ]  # fmt: skip
    link = next(c for c in run.changing if c.what == "apply link").request
    assert link["steps"] == [{"op": "link", "path": t.VENV, "target": FOLDER, "expect": t.TARGET}]
    blob = link["change"]["blob"]
    assert (blob["from"], blob["to"], blob["backup"]) == ("0.32.0+cpu", NEW, {NAME: KEPT})
    assert blob["baseline"] > 0
    assert "write venv.version: 0.33.0+cpu into catalog/recipes/tiny-venv.yaml" in run.stderr
    assert "not carried over from the former: genesis" in run.stderr


def test_in_place_stops_first_and_names_the_backup_that_undoes_it(ran: Runs) -> None:
    """The seed's way: the venv itself is changed, so nothing may run from it."""
    run = ran["in place"]
    assert run.status == 0, run.output
    assert steps(run) == ["apply stop", "venv replace", "apply start", "close COMMITTED"]
    replace = next(c for c in run.changing if c.verb == "venv replace").request
    assert (replace["backup"], replace["venv"], replace["version"]) == (KEPT, t.VENV, NEW)
    assert replace["change"]["blob"]["baseline"] > 0
    pip_asked = next(c for c in run.commands if c.verb == "wheels").request
    assert not pip_asked.get("fresh"), "pip is asked for the very venv that it will change"
    dry = ran["in place dry"]
    assert dry.status == 0 and dry.changing == ()
    assert "the venv itself is changed, engine stopped" in dry.stderr
    assert "the way back is its restore" in dry.stderr
    assert ran["in place same"].changing == ()


def test_in_place_any_failure_is_undone(ran: Runs) -> None:
    for name in ("in place dies", "in place no pip"):
        run = ran[name]
        assert run.status == 1 and steps(run)[-2:] == ["systemctl-stop", "undo"], run.output
        assert "ROLLED_BACK" in run.output


def test_prune_shows_what_goes_and_why_and_removes_it_once(ran: Runs) -> None:
    run = ran["prune"]
    assert run.status == 0 and steps(run) == ["venv prune"], run.output
    line = "remove /opt/engine/venvs/0.33.0 (0.33.0, 2048 MiB): neither active nor former"
    assert line in run.stderr and f"keep {t.TARGET} (0.32.0+cpu): the active version" in run.stderr
    assert "2048 MiB freed" in run.stderr
    assert ran["prune dry"].changing == () and line in ran["prune dry"].stderr
    assert ran["prune nothing"].changing == () and ran["prune nothing"].status == 0
    ran["prune open"].refused("change-open")


def test_the_version_that_is_there_changes_nothing(ran: Runs) -> None:
    for name in ("same", "recipe"):
        run = ran[name]
        assert run.status == 0 and run.changing == (), run.output
        assert re.search(r"Grand total +\d+ +- +- +\d+", run.stderr), run.stderr


def test_an_engine_that_dies_twice_is_taken_back(ran: Runs) -> None:
    """B1: a crash loop ends at two starts; the reason travels into the journal."""
    run = ran["dies"]
    assert run.status == 1
    assert steps(run) == [
        "venv install", "apply stop", "apply link", "apply start", "apply restart",
        "systemctl-stop", "undo",
    ]  # fmt: skip
    undo = run.changing[-1].request
    assert "2 starts, and none came to an answer" in undo["reason"] and "\n" not in undo["reason"]
    assert "ROLLED_BACK" in run.output


def test_what_fails_beside_leaves_the_engine_alone(ran: Runs) -> None:
    for name, words in (("no pip", "pip ended with 1"), ("broken", "ended with 1")):
        run = ran[name]
        assert run.status == 1 and words in run.stderr, run.output
        assert not {"apply stop", "undo", "systemctl-stop"} & set(steps(run)), steps(run)


@pytest.mark.parametrize(("name", "words"), [
    ("no wheel", "wheel-missing"), ("other torch", "torch-variant"), ("no room", "no room beside"),
    ("open", "change-open"), ("hostile", "is not a version"), ("number", "was read as a number"),
])  # fmt: skip
def test_what_is_refused_changes_nothing(ran: Runs, name: str, words: str) -> None:
    ran[name].refused(words)


def test_an_engine_that_is_down_is_not_stopped_and_not_measured(ran: Runs) -> None:
    run = ran["down"]
    assert run.status == 0, run.output
    assert "apply stop" not in steps(run) and "the engine does not answer; baseline" in run.stderr


def test_a_backup_is_restored_executed_started_and_proven(ran: Runs) -> None:
    run = ran["restore"]
    assert run.status == 0, run.output
    assert steps(run) == ["apply stop", "tree restore", "apply start", "close COMMITTED"]
    restore = next(c for c in run.changing if c.verb == "tree restore").request
    assert restore["backup"] == KEPT and restore["change"]["deploy"] == "restore"
    assert "venv check" in run.of(NAME)
    line = "write /etc/systemd/system/rigbook-engine.service, as recorded"
    assert line in run.stderr and line in ran["restore dry"].stderr
    assert ran["restore dry"].changing == () and ran["restore dry"].status == 0


def test_an_open_change_is_undone_first_without_a_start(ran: Runs) -> None:
    run = ran["restore open"]
    assert run.status == 0, run.output
    assert steps(run)[:3] == ["systemctl-stop", "undo", "tree restore"]
    assert next(c for c in run.changing if c.verb == "undo").request["start_units"] is False


def test_a_second_restore_changes_nothing(ran: Runs) -> None:
    assert ran["restored"].status == 0 and ran["restored"].changing == (), ran["restored"].output


def test_an_unknown_backup_names_those_that_are_known(ran: Runs) -> None:
    ran["unknown backup"].refused("no backup 20200101T000000Z-x-0000", KEPT)
