"""A recipe's secrets: written on every node, and in nothing that a run says, sends in a command
line or leaves in a process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploys.plans import backup, serve
from facts import endpoint
from facts.endpoint import probe
from facts.measure import NotMeasured, measure
from node.rules.secret import SECRETS_PATH
from schema.load import plan as load_plan
from schema.plan import Plan
from tests.command_lines import CommandLines
from tests.plans.support.doubles import EngineDouble, Reply
from tests.plans.support.scenario import (
    HEAD,
    ROOT,
    WORKER,
    Ran,
    Runs,
    Scenario,
    Snapshots,
    data,
    done,
    each_row,
    refused,
    tiny_plan,
)
from tests.plans.support.scenario import host as host_data
from tests.plans.support.scenario import serving as serving_rig
from tests.plans.venv.test_upgrade import TO
from tests.plans.venv.test_upgrade import scenario as upgrade
from tests.plans.venv.test_venv_rig import fresh as tower_fresh
from tests.plans.venv.test_venv_rig import hosts as tower_hosts
from tests.unit.builders.rigs import healthy, put

SERVE = "deploys/serve.py"
TOKEN, KEY = f"T0K-{os.urandom(6).hex()}", f"K3Y-{os.urandom(6).hex()}"
MISSING = "RIGBOOK_TEST_NOT_SET"
SECRETS = {
    "HF_TOKEN": {"file": "@token"},
    "VLLM_API_KEY": {"env": "RIGBOOK_TEST_KEY"},
}
FILES = {"lab1 apply file+unit", "lab2 apply file+unit"}
START = ["lab2 apply start", "lab1 apply start", "lab1 close COMMITTED", "lab2 close COMMITTED"]
NEW = "(mode 0600, owner root): HF_TOKEN new, VLLM_API_KEY new"
VERBOSE = ("-vvv", "--debug", "--diff")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recipes that name secrets, and the file of one beside it."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    (folder / "key").write_text(f"{KEY}\n")
    (folder / "key").chmod(0o600)
    (folder / "open").write_text(f"{TOKEN}\n")
    for base in ("tiny", "tiny-venv"):
        text = yaml.safe_load((ROOT / f"catalog/recipes/{base}.yaml").read_text())
        for name, secrets in {
            "kept": SECRETS,
            "unset": {"HF_TOKEN": {"env": MISSING}},
            "open": {"HF_TOKEN": {"file": "@open"}},
            "there": {"HF_TOKEN": {"node_file": "@token"}},
            "gone": {"HF_TOKEN": {"node_file": "/nowhere/token"}},
            "guarded": {"VLLM_API_KEY": {"node_file": "@key"}},
        }.items():
            filled = {
                key: {k: v.replace("@", f"{folder}/") for k, v in source.items()}
                for key, source in secrets.items()
            }
            made = {**text, "secrets": filled}
            (folder / f"{base}-{name}.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    return folder


def started(recipe: str, recipes: Path, *words: str, **more: Any) -> Scenario:
    """serve of one of these recipes on the pair."""
    chosen = data(f"recipe={recipe}", f'recipes_dir=["{recipes}"]')
    env = {"RIGBOOK_TEST_KEY": KEY, **more.pop("env", {})}
    more = {"seen": healthy, "answers": Reply, **more}
    return Scenario((SERVE, *words, *chosen), env=env, **more)


def of_tower(recipe: str, recipes: Path, *words: str) -> Scenario:
    """serve of one of them on the tower."""
    return started(recipe, recipes, *words, seen=tower_fresh, hosts=tower_hosts)


def upgraded(recipe: str, recipes: Path) -> Scenario:
    """upgrade of the tower's engine with one of them."""
    chosen = (f"recipe={recipe}", f'recipes_dir=["{recipes}"]')
    return upgrade(TO, *chosen, how=("-y", *VERBOSE), env={"RIGBOOK_TEST_KEY": KEY})


TABLE = {
    "fresh": done(f"write {SECRETS_PATH} {NEW}", steps=[FILES, *START]),
    "dry": done(f"write {SECRETS_PATH} {NEW}", steps=()),
    "tower": done(f"write {SECRETS_PATH} {NEW}"),
    "there": done("HF_TOKEN new", steps=[FILES, *START]),
    "unset": refused(
        "secret-missing", "a secret of recipe tiny-unset cannot be had",
        f"read -rs {MISSING}; export {MISSING}",
        says=(f"evidence: HF_TOKEN: the variable {MISSING} of this shell is not set",)),
    "open": refused("secret-missing", "chmod o= ", says=("open is open to every user",)),
    "gone": refused(
        f"secret-missing on {HEAD}", says=("/nowhere/token cannot be read: No such file",)),
    # the operator's machine does not have the key of the nodes
    "guarded": refused("wants a key: RIGBOOK_API_KEY is not set here", "read -rs RIGBOOK_API_KEY"),
    "guarded, known": done("VLLM_API_KEY new", steps=[FILES, *START]),
    # the unit names the file: it must be there before the start
    "upgrade": done(f"write {SECRETS_PATH} {NEW}"),
    "upgrade, unset": refused("secret-missing", f"export {MISSING}"),
    "no key": refused("wants a key: VLLM_API_KEY: the variable RIGBOOK_TEST_KEY of this shell is"
                      " empty", "export RIGBOOK_TEST_KEY"),
}  # fmt: skip


@pytest.fixture(scope="module")
def watched(recipes: Path) -> tuple[Runs, CommandLines]:
    """All runs of this module, with every process's command line read meanwhile."""
    scenarios = {
        "fresh": started("tiny-kept", recipes, "-y", *VERBOSE),
        "dry": started("tiny-kept", recipes, "--dry", *VERBOSE),
        "tower": of_tower("tiny-venv-kept", recipes, "-y", *VERBOSE),
        "there": started("tiny-there", recipes, "-y", *VERBOSE),
        "unset": started("tiny-unset", recipes, "-y"),
        "open": started("tiny-open", recipes, "-y"),
        "gone": started("tiny-gone", recipes, "-y"),
        "guarded": started("tiny-guarded", recipes, "-y"),
        "guarded, known": started(
            "tiny-guarded", recipes, "-y", *VERBOSE, env={"RIGBOOK_API_KEY": KEY}
        ),
        "upgrade": upgraded("tiny-venv-kept", recipes),
        "upgrade, unset": upgraded("tiny-venv-unset", recipes),
        "no key": started("tiny-kept", recipes, "-y", env={"RIGBOOK_TEST_KEY": ""}),
    }
    with CommandLines(TOKEN, KEY) as poller:
        runs = Runs(scenarios)
    return runs, poller


@pytest.fixture(scope="module")
def ran(watched: tuple[Runs, CommandLines]) -> Runs:
    return watched[0]


test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_nothing_that_a_run_says_or_types_has_a_value(ran: Runs, name: str) -> None:
    """The loudest output that pyinfra has, the diffs, and every command line on a host."""
    told = [ran[name].output, *(command.raw for command in ran[name].commands)]
    for secret in (TOKEN, KEY):
        assert not any(secret in text for text in told)


def test_no_process_showed_a_value(watched: tuple[Runs, CommandLines]) -> None:
    assert watched[1].looks > 1 and watched[1].found == set()


def test_the_poller_sees_a_command_line() -> None:
    with CommandLines("pytest") as poller:
        while not poller.looks:
            pass
    assert poller.found


def holders(run: Ran) -> Iterator[str]:
    """What was sent to hosts with a value in it, by stdin."""
    for command in run.commands:
        if TOKEN in str(command.request) or KEY in str(command.request):
            yield f"{command.host.removeprefix('@fake/')} {command.what}"


def test_a_value_goes_to_the_look_and_the_write_of_its_node_alone(ran: Runs) -> None:
    looks = ["lab1 secrets look", "lab2 secrets look"]
    assert sorted(holders(ran["fresh"])) == sorted([*looks, *FILES])
    assert sorted(holders(ran["dry"])) == looks
    assert list(holders(ran["there"])) == []


@pytest.mark.parametrize("name", ["fresh", "tower"])
def test_the_step_and_the_unit(ran: Runs, name: str) -> None:
    """docker reads the file raw, systemd with quotes; both besides the recipe's own."""
    first = next(c for c in ran[name].changing if c.verb == "apply")
    steps = {str(step.get("path")): step for step in first.request["steps"]}
    secret, unit = steps[SECRETS_PATH], steps["/etc/systemd/system/rigbook-engine.service"]
    assert (secret["mode"], secret["owner"], secret["quoted"]) == ("0600", "root", name == "tower")
    assert secret["secrets"] == [
        {"name": "HF_TOKEN", "value": TOKEN}, {"name": "VLLM_API_KEY", "value": KEY}
    ]  # fmt: skip
    option = "EnvironmentFile=" if name == "tower" else "--env-file "
    for file in ("engine.env", "secrets.env"):
        assert f"{option}/etc/rigbook/engine/{file}" in unit["content"]
    rest = [step for path, step in steps.items() if path != SECRETS_PATH]
    assert TOKEN not in str(rest) and KEY not in str(rest)


def plan_of(recipes: Path, recipe: str, seen_at: Plan) -> Plan:
    """The plan of the pair for one of these recipes at a run's address."""
    address = str(seen_at.rig.head.lan_address)
    changes = {"recipe": recipe, "recipes_dir": [str(recipes)]}
    hosts = {HEAD: host_data(1, address, **changes), WORKER: host_data(2, address, **changes)}
    return load_plan(hosts, None, ROOT)


def kept(recipes: Path, mode: str = "0600") -> Any:
    """The pair as serve leaves it with these secrets, their file of this mode."""

    def seen(plan: Plan) -> Snapshots:
        found = dict(serving_rig(plan_of(recipes, "tiny-kept", plan)))
        for name, snapshot in found.items():
            assert isinstance(snapshot.files, tuple)
            *others, file = snapshot.files
            assert file.path == SECRETS_PATH
            files = (*others, file.model_copy(update={"mode": mode}))
            found[name] = put(snapshot, "files", files)
        return found

    return seen


def looked(**states: str) -> dict[str, Any]:
    """What both hosts say of their files."""
    return {f"{name}:says secrets look": {"states": states} for name in (HEAD, WORKER)}


SERVING_TABLE = {
    "as wanted": done("serving as the recipe says", steps=()),
    # another value: the file alone, and the engine reads it at its start
    "changed": done("HF_TOKEN changed, VLLM_API_KEY unchanged", "its files change", steps=[
        {"lab1 apply file+unit", "lab2 apply file+unit"}, "lab1 apply stop", "lab2 apply stop",
        *START]),
    "open": done("HF_TOKEN unchanged, VLLM_API_KEY unchanged"),
    # the recipe names none any more: what lies there goes
    "dropped": done(f"remove {SECRETS_PATH}", "-HF_TOKEN=***"),
}  # fmt: skip


@pytest.fixture(scope="module")
def served(recipes: Path) -> Runs:
    """Runs on a pair that serves one of these recipes."""

    def on(seen: Any, **states: str) -> Scenario:
        more = {"seen": seen, "faults": looked(**states)}
        return started("tiny-kept", recipes, "-y", *VERBOSE, **more)

    same = {"HF_TOKEN": "unchanged", "VLLM_API_KEY": "unchanged"}
    return Runs(
        {
            "as wanted": on(kept(recipes), **same),
            "changed": on(kept(recipes), **{**same, "HF_TOKEN": "changed"}),
            "open": on(kept(recipes, "0644"), **same),
            "dropped": Scenario((SERVE, "-y", *VERBOSE), kept(recipes), answers=Reply),
        }
    )


@pytest.mark.parametrize("name", SERVING_TABLE)
def test_a_rig_that_serves(served: Runs, name: str) -> None:
    SERVING_TABLE[name].check(served[name])


def test_the_engine_is_asked_with_its_key(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the recipe's secret; RIGBOOK_API_KEY goes before it (the former one, in a rollback)."""
    monkeypatch.setenv("RIGBOOK_TEST_KEY", KEY)
    monkeypatch.delenv("RIGBOOK_API_KEY", raising=False)
    made = plan_of(recipes, "tiny-kept", tiny_plan())
    where = serve.endpoint_with_key(made)
    assert KEY not in repr(where) and KEY not in repr(made)
    with EngineDouble(Reply, key=KEY) as engine:
        where = replace(where, base_url=engine.url, ours=True)
        assert endpoint.ask(where).ok
        probe(where)
        endpoint.metric_names(where)
        with pytest.raises(NotMeasured):
            measure(where, runs=1)
        assert {key for key in engine.keys if key} == {f"Bearer {KEY}"}
        engine.keys.clear()
        monkeypatch.setenv("RIGBOOK_API_KEY", "former")
        assert not endpoint.ask(where).ok and engine.keys == [None, "Bearer former"]


def test_a_backup_has_neither_values_nor_their_file(
    recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGBOOK_TEST_KEY", KEY)
    made = plan_of(recipes, "tiny-kept", tiny_plan())
    asked = backup.request(made, HEAD, "/opt/engine/venv", serving_rig(made)[HEAD])
    assert SECRETS_PATH not in asked["files"] and asked["documents"]["recipe"]["secrets"]
    assert TOKEN not in json.dumps(asked) and KEY not in json.dumps(asked)
