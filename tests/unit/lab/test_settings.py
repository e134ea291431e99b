"""Names, addresses and paths of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.core import settings
from lab.hosts import lifecycle
from lab.hosts.supervisor import nspawn_argv


def test_paths_follow_the_environment(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": f"{tmp_path}/home", "RIGBOOK_CACHE": f"{tmp_path}/c"})
    assert lab.ssh_key == tmp_path / "home/ssh/id_ed25519"
    assert lab.images == tmp_path / "c/images"


def test_empty_variables_mean_the_defaults() -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": "", "RIGBOOK_CACHE": ""})
    assert lab.home == Path("/var/lib/rigbook-lab")
    assert lab.cache == Path("~/.cache/rigbook").expanduser()


def test_hosts_are_two_without_a_lab_and_as_recorded_with_one(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert [(h.name, h.address, h.fabric_address) for h in lab.hosts()] == [
        ("lab1", "10.88.0.11", "10.99.0.1"),
        ("lab2", "10.88.0.12", "10.99.0.2"),
    ]
    (tmp_path / "lab.json").write_text('{"hosts": 3}')
    assert [h.fabric_address for h in lab.fabric_hosts()] == [f"10.99.0.{n}" for n in (1, 2, 3)]
    (tmp_path / "lab.json").write_text('{"hosts')
    assert len(lab.hosts()) == 2


def test_an_unknown_host_names_those_that_exist(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert lab.host("lab2").number == 2
    with pytest.raises(settings.LabError, match=r"'lab3'.*lab1, lab2"):
        lab.host("lab3")


def test_reading_settings_writes_nothing(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": f"{tmp_path}/h", "RIGBOOK_CACHE": f"{tmp_path}/c"})
    assert lab.hosts()
    assert not list(tmp_path.iterdir())


def test_the_hosts_from_the_second_on_have_the_containerd_store(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert not any(host.containerd for host in lab.hosts())
    (tmp_path / "lab.json").write_text('{"hosts": 3, "containerd": true}')
    assert [host.containerd for host in lab.hosts()] == [False, True, True]
    one, two, _ = lab.hosts()
    bind = f"--bind={lab.host_dir(two) / 'containerd'}:/var/lib/containerd"
    assert bind in nspawn_argv(lab, two)
    assert not any("containerd" in word for word in nspawn_argv(lab, one))


def test_the_containerd_store_is_not_given_to_a_lab_that_exists(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": str(tmp_path)})
    (tmp_path / "lab.json").write_text('{"hosts": 2}')
    with pytest.raises(settings.LabError, match="without the containerd store exists; run 'down'"):
        lifecycle.up(lab, containerd=True)
    (tmp_path / "lab.json").unlink()
    with pytest.raises(settings.LabError, match="--containerd needs --hosts 2 or more"):
        lifecycle.up(lab, count=1, containerd=True)
    assert not list(tmp_path.iterdir())


def test_a_tower_is_a_host_of_its_own_kind(tmp_path: Path) -> None:
    lab = settings.load({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert not any(host.is_tower for host in lab.hosts())
    (tmp_path / "lab.json").write_text('{"hosts": 2, "towers": 1}')
    assert [host.name for host in lab.hosts()] == ["lab1", "lab2", "tower1"]
    tower = lab.host("tower1")
    assert (tower.address, tower.has_fabric) == ("10.88.0.51", False)
    (tmp_path / "lab.json").write_text('{"hosts": 0, "towers": 1}')
    assert [host.name for host in lab.hosts()] == ["tower1"]


def test_the_tests_lab_shares_nothing_with_the_users() -> None:
    users, tests = (settings.load({"RIGBOOK_LAB": name}) for name in ("", "tests"))
    assert users.place is settings.USERS and tests.place is settings.TESTS

    def own(lab: settings.LabSettings) -> set[str]:
        made = lab.place.hosts(settings.MAX_HOSTS) + lab.place.towers(1)
        found = {str(lab.home), lab.place.bridge, lab.place.lan, lab.place.fabric}
        found |= {*lab.place.fabric_links, lab.place.fabric_bridge, lab.place.operator_address}
        return found | {host.name for host in made} | {host.address for host in made}

    assert not own(users) & own(tests)
    assert users.cache == tests.cache, "what is built once is built for both"
    links = [f"{link}h" for link in tests.place.fabric_links]
    links += [f"vb-{host.name}" for host in tests.place.towers(1)]
    assert all(len(link) < 16 for link in links)


def test_a_lab_that_is_not_known_is_refused() -> None:
    with pytest.raises(settings.LabError, match="RIGBOOK_LAB is 'mine'; there are: lab, tests"):
        settings.load({"RIGBOOK_LAB": "mine"})
