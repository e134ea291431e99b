"""A rig's data becomes its twin's: names and paths stay, and nothing leads out of the machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gates.core import CODES
from lab import core, rehearsal
from lab.core import LabError, LabSettings
from lab.incidents import HELD, NOT_HELD, ROWS, Rig
from schema import load

ROOT = Path(__file__).resolve().parents[3]
SECRET = "https://hooks.example/T0K-1a2b3c"
OUT = {"webhook": SECRET, "power_cycle_command": "/usr/bin/plug off", "mac": "00:11:22:33:44:55",
       "nic": "eno1", "ssh_port": 2222, "ssh_password": "pw-1a2b3c"}  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> LabSettings:
    """A place for a twin, in a temporary folder."""
    return LabSettings(tmp_path / "home", tmp_path / "cache", core.TWIN)


def pair(number: int, **more: Any) -> dict[str, Any]:
    """The data of one of two Spark."""
    own = {"role": "head" if number == 1 else "worker", "lan_address": f"192.168.1.1{number}",
           "fabric_address": f"10.0.0.{number}", "fabric_device": "enp1s0f0np0",
           "ssh_user": "milo", "rig": "spark", "recipe": "deepseek-v4-flash"}  # fmt: skip
    return own | more


def rig(**more: Any) -> dict[str, dict[str, Any]]:
    """Two Spark, the worker first in the file."""
    return {"spark2": pair(2, **more), "spark1": pair(1, **more)}


def test_names_users_and_paths_stay_and_addresses_are_the_labs(lab: LabSettings) -> None:
    made = rehearsal.shape(lab, "inventory/spark.py", rig())
    assert made.twin.names == ("spark1", "spark2"), "in rank order"
    assert (made.twin.user, made.weights) == ("milo", "~/models/DeepSeek-V4-Flash")
    assert made.data["spark2"]["lan_address"] == "10.87.0.12"
    assert made.data["spark2"]["fabric_device"] == "bond0"
    assert any("10.0.0.2 on enp1s0f0np0 is 10.97.0.2 on bond0" in row for row in made.differs)
    assert made.data["spark1"]["rig"] == "spark-twin", "what is kept of a twin is no rig's"


def test_nothing_of_it_leads_out_of_the_machine(lab: LabSettings) -> None:
    made = rehearsal.shape(lab, "inventory/spark.py", rig(**OUT))
    for row in made.data.values():
        assert {key: row[key] for key in OUT} == {**dict.fromkeys(OUT), "ssh_port": 22}
    assert any(row == "not on the twin: mac, nic, power_cycle_command, webhook"
               for row in made.differs)  # fmt: skip
    whole = "\n".join([*rehearsal.shape_files(made).values(), *rehearsal.told(made)])
    assert SECRET not in whole and "192.168." not in "".join(rehearsal.shape_files(made).values())
    assert "pw-1a2b3c" not in whole


@pytest.mark.parametrize("inventory", ["inventory/spark.py", "inventory/tower.py"])
def test_the_files_are_a_rig_that_every_runbook_loads(
    lab: LabSettings, tmp_path: Path, inventory: str
) -> None:
    made = rehearsal.shape(lab, inventory, rehearsal.load_data(inventory))
    for name, text in rehearsal.shape_files(made).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (recipe,) = tmp_path.glob("build/twin/*/recipes/*.yaml")
    hosts = {name: {**row, "recipes_dir": [str(recipe.parent)]} for name, row in made.data.items()}
    plan = load.plan(hosts, None, ROOT)
    assert plan.recipe.name == recipe.stem and not plan.recipe.expect.needs_nvidia
    original = load.plan(rehearsal.load_data(inventory), None, ROOT).recipe
    assert [*plan.recipe.profiles] == [*original.profiles]
    assert plan.recipe.vllm_serve["served_model_name"] == original.vllm_serve["served_model_name"]
    lengths = {spec.argv[spec.argv.index("--max-model-len") + 1] for spec in plan.specs.values()}
    assert all(64 <= int(length) <= 512 for length in lengths)
    if original.container is not None and plan.recipe.container is not None:
        assert plan.recipe.container.image == original.container.image
    # pyinfra merges group_data of the rig's name below it, and finds what the twin says
    place = tmp_path / made.twin.inventory
    found = rehearsal.load_data(str(place))
    assert {name: row["recipe"] for name, row in found.items()} == dict.fromkeys(
        made.twin.names, recipe.stem
    )
    assert all(row["ssh_hostname"].startswith("10.87.0.") for row in found.values())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"ssh_user": "root"}, "ssh_user is root; allowed: one user"),
        ({"ssh_user": "rig"}, "ssh_user is rig; allowed: one user"),
        ({"recipe": "nosuch"}, "nosuch"),
    ],
)
def test_a_rig_that_has_no_twin_is_refused(
    lab: LabSettings, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(LabError, match=says):
        rehearsal.shape(lab, "inventory/spark.py", rig(**more))
    with pytest.raises(LabError, match="a Kubernetes rig has no twin"):
        rehearsal.shape(lab, "inventory/olares.py", rehearsal.load_data("inventory/olares.py"))


def test_an_inventory_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(LabError, match=r"inventory/none.py is not a file.*inventory/spark.py"):
        rehearsal.load_data("inventory/none.py")


def test_weights_of_the_hub_and_a_digest_have_a_place(lab: LabSettings, tmp_path: Path) -> None:
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    recipe["weights"] = {"source": "org/model"}
    recipe["vllm_serve"]["model"] = "org/model"
    recipe["container"] |= {"image": f"registry.lab/engine@sha256:{'a' * 64}", "volumes": []}
    (tmp_path / "hub.yaml").write_text(yaml.safe_dump(recipe))
    hosts = rig(recipe="hub", recipes_dir=[str(tmp_path)])
    made = rehearsal.shape(lab, "inventory/spark.py", hosts)
    assert made.image == "registry.lab/engine:twin"
    script = rehearsal.furniture(made)
    folder = "/home/milo/.cache/huggingface/hub/models--org--model"
    assert f"> {folder}/refs/main" in script and f"{folder}/snapshots/{'0' * 40}" in script


def test_a_twins_host_has_the_rigs_name_and_a_folder_of_its_number(lab: LabSettings) -> None:
    made = rehearsal.shape(lab, "inventory/spark.py", rig())
    lab.home.mkdir(parents=True)
    lab.state_file.write_text(f'{{"hosts": 2, "twin": {json.dumps(made.twin.as_json())}}}')
    assert [host.name for host in lab.hosts()] == ["spark1", "spark2"]
    assert [host.machine for host in lab.hosts()] == ["twin1", "twin2"]
    assert lab.host_dir(lab.hosts()[0]).name == "twin1", "down finds it without the list"
    assert lab.twin() == made.twin


def test_every_incident_is_on_a_twin_or_has_a_reason() -> None:
    rows = re.findall(r"^\| ([ABCD]\d+) \|", (ROOT / "docs/incidents.md").read_text(), re.M)
    assert sorted([*HELD, *NOT_HELD]) == sorted(rows)
    assert all(reason.strip() for reason in NOT_HELD.values()) and len(HELD) == len(ROWS)


def test_the_page_of_incidents_says_which_can_be_dealt() -> None:
    text = " ".join((ROOT / "docs/incidents.md").read_text().split())
    (named,) = re.findall(r"deals these on a twin of a rig, to be practised: ([^(]+) \(", text)
    assert named.split(", ") == [*HELD]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_a_row_names_findings_and_runbooks_that_exist(row: Any) -> None:
    assert row.codes and set(row.codes) <= set(CODES)
    for step in row.mends:
        word, *rest = step.split()
        assert (ROOT / f"deploys/{word}.py").is_file() or (word, rest[0]) == ("remedy", rest[0])
    assert row.on and row.tells and not any(code in row.tells for code in row.codes)


def test_an_incident_of_another_rig_says_which_fit(lab: LabSettings) -> None:
    recipe = {"container": {}, "profiles": {"a": 1, "b": 1}, "default_profile": "a"}
    one: Any = None
    pair_of = Rig(one, ("a", "b"), "i", recipe, "milo")
    assert pair_of.kinds == {"container", "pair"} and pair_of.other_profile == "b"
    with pytest.raises(LabError, match=r"B3 needs another rig \(venv\)"):
        rehearsal.row_of(pair_of, "B3")
    with pytest.raises(LabError, match="B6 is not on a twin: needs the board"):
        rehearsal.row_of(pair_of, "B6")
    with pytest.raises(LabError, match="no incident 'X1'"):
        rehearsal.row_of(pair_of, "X1")
    assert rehearsal.row_of(pair_of, "C13").code == "C13"
    with pytest.raises(LabError, match="there is no twin"):
        rehearsal.rig_of(lab)
