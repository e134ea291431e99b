"""The pure parts of tests/infra: ssh settings from host data, and errors of one line."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paramiko import SSHConfig

from schema.core import SpecError
from schema.snapshot import Unreadable
from tests.infra.observe import observe
from tests.infra.plugin import ROOT, Connections, Rig, load_rig, problem_lines, ssh_config

SPARK = "inventory/spark.py"
DATA = {
    "ssh_hostname": "192.168.1.11",
    "ssh_user": "milo",
    "ssh_port": 2222,
    "ssh_key": "~/.ssh/a key 100%",
    "ssh_known_hosts_file": "/etc/rig/known_hosts",
    "ssh_strict_host_key_checking": "yes",
}


def _lookup(text: str) -> dict[str, Any]:
    """What an ssh client understands of a configuration."""
    config = SSHConfig()
    config.parse(io.StringIO(text))
    return dict(config.lookup("192.168.1.11"))


def test_ssh_config_carries_every_key_of_the_host() -> None:
    seen = _lookup(ssh_config("spark1", DATA, Path("/tmp/rigbook-x/0")))
    assert seen["user"] == "milo"
    assert seen["port"] == "2222"
    assert [str(file).rpartition("/")[2] for file in seen["identityfile"]] == ["a key 100%%"]
    assert seen["identitiesonly"] == "yes"
    assert seen["userknownhostsfile"] == "/etc/rig/known_hosts"
    assert seen["stricthostkeychecking"] == "yes"
    assert seen["batchmode"] == "yes"
    assert (seen["controlmaster"], seen["controlpath"]) == ("auto", "/tmp/rigbook-x/0")


def test_ssh_config_leaves_open_what_the_host_does_not_say() -> None:
    text = ssh_config("spark1", {"ssh_user": "milo"}, Path("/tmp/rigbook-x/0"))
    seen = _lookup(text)
    assert not {"port", "identityfile", "identitiesonly", "userknownhostsfile"} & seen.keys()
    assert seen["stricthostkeychecking"] == "yes"
    # First value wins in an ssh_config, so the operator's own file must come last.
    assert text.splitlines()[-1].strip() == 'Include "~/.ssh/config"'


def test_a_minimal_inventory_asks_for_a_known_host_key(tmp_path: Path) -> None:
    """docs/runbooks/adopt.md's; pyinfra itself takes any key at the first contact."""
    page = (ROOT / "docs/runbooks/adopt.md").read_text()
    inventory = tmp_path / "mine.py"
    inventory.write_text(page.split("```")[1])
    line = [sys.executable, "-m", "pyinfra", str(inventory), "debug-inventory"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.count('"ssh_strict_host_key_checking": "yes"') == 2, done.stderr


@pytest.mark.parametrize("key", ["ssh_password", "ssh_key_password", "ssh_paramiko_connect_kwargs"])
def test_a_key_that_openssh_cannot_use_is_named(key: str) -> None:
    with pytest.raises(SpecError, match=f"host spark1: {key}: "):
        ssh_config("spark1", {**DATA, key: "x"}, Path("/tmp/rigbook-x/0"))


@pytest.mark.parametrize("value", ['k" ', "k\nProxyCommand touch /tmp/canary", "k\x00"])
def test_a_value_cannot_add_a_line_to_the_ssh_config(value: str) -> None:
    with pytest.raises(SpecError, match=r"host spark1: ssh_key: .* cannot stand in an ssh_config"):
        ssh_config("spark1", {**DATA, "ssh_key": value}, Path("/tmp/rigbook-x/0"))


def test_a_crash_of_the_loader_is_told_by_its_last_line() -> None:
    crash = "Traceback (most recent call last):\n  File x\nValueError: no\n"
    assert problem_lines(crash, SPARK) == [f"{SPARK}: ValueError: no"]
    assert problem_lines("first\nsecond\n", SPARK) == ["first", "second"]
    assert problem_lines("\n", SPARK) == [f"{SPARK}: the loader ended without a word"]


def test_the_rig_is_merged_as_pyinfra_merges_it() -> None:
    rig = load_rig(str(ROOT / SPARK), ["profile=latency"])
    assert rig.inventory == SPARK
    assert [(node.name, node.role) for node in rig.plan.rig.nodes] == [
        ("spark1", "head"),
        ("spark2", "worker"),
    ]
    assert rig.plan.profile == "latency"
    assert rig.hosts["spark1"]["fabric_device"] == "bond0", "group_data was not read"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("spark = [", "SyntaxError: '[' was never closed"),
        ("", "no hosts matched"),
        ('rig9 = [("a", {"role": set()})]', "host a: role: holds a value that is no plain data"),
    ],
)
def test_a_bad_inventory_is_one_line(tmp_path: Path, content: str, line: str) -> None:
    inventory = tmp_path / "rig9.py"
    inventory.write_text(content)
    with pytest.raises(SpecError) as caught:
        load_rig(str(inventory))
    assert line in str(caught.value)
    assert len(caught.value.problems) == 1


def test_an_inventory_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(SpecError, match=r"inventory/nope\.py is not a file; .*inventory/spark\.py"):
        load_rig("inventory/nope.py")


@pytest.mark.parametrize("pair", ["profile", "no_such_key=1"])
def test_bad_rig_data_is_an_error(pair: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_rig(str(ROOT / SPARK), [pair])
    assert "Traceback" not in str(caught.value)


def test_no_rig_is_a_usage_error_of_one_line() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/infra"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.split("\n", 1)[0] == (
        "ERROR: tests/infra needs a rig: pytest tests/infra --rig inventory/lab.py"
    )


def test_nodes_that_do_not_answer_are_unreadable_with_the_reason() -> None:
    loaded = load_rig(str(ROOT / SPARK))
    # Port 1 of this machine: refused at once.
    closed = {
        name: {"ssh_user": "nobody", "ssh_hostname": "127.0.0.1", "ssh_port": 1}
        for name in loaded.hosts
    }
    connections = Connections(Rig(SPARK, (), loaded.plan, closed))
    try:
        seen = observe(Rig(SPARK, (), loaded.plan, closed), connections).snapshots
        sockets = [connections.folder / str(node.rank) for node in loaded.plan.rig.nodes]
    finally:
        connections.close()
    for one in seen.values():
        assert isinstance(one, Unreadable) and "\n" not in one.unreadable
    # ssh binds to the path with 17 characters of its own behind it.
    assert max(len(str(socket)) for socket in sockets) + 17 < 108
    assert not sockets[0].parent.exists()
