"""Inventory, group_data and --data: a closed set of keys, checked host by host and as a rig."""

from __future__ import annotations

import json

import pytest
from pyinfra.connectors import fake, ssh

from schema.core.errors import SpecError
from schema.core.types import PYINFRA_KEYS
from schema.inputs.check import host_data
from schema.inputs.host_data import HostData
from schema.inputs.load import plan, profile_name, recipe
from schema.inputs.runbook_data import DoctorData, RollbackData, WatchData
from tests.unit.builders.spark_rig import ROOT, host, spark_plan

SOURCES = {
    "spark1": {"lan_address": "inventory/spark.py"},
    "spark2": {
        "lan_address": "inventory/spark.py",
        "rank": "inventory/spark.py",
        "fabric_mtu": "group_data/spark.py",
        "ssh_prot": "group_data/spark.py",
        "profil": "--data",
        "recipe": "--data",
        "deep": "--data",
    },
}


def error_of(**changes: object) -> str:
    """The error when spark2's data has these changes."""
    with pytest.raises(SpecError) as caught:
        plan({"spark1": host(1), "spark2": host(2, **changes)}, SOURCES, ROOT)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"profil": "latency"}, "--data: host spark2: unknown key 'profil'; did you mean profile?"),
        (
            {"ssh_prot": 22},
            "group_data/spark.py: host spark2: unknown key 'ssh_prot'; did you mean",
        ),
        ({"recipe": 123}, "--data: host spark2: recipe: is the number 123; allowed: text (put it"),
        ({"recipe": {1}}, "--data: host spark2: recipe: holds a value that is no plain data (set)"),
        ({"deep": "yes"}, "--data: host spark2: deep: is the text 'yes'; allowed: true or false"),
        ({"deep": 1}, "--data: host spark2: deep: is the number 1; allowed: true or false"),
        (
            {"lan_address": "192.168.1"},
            "inventory/spark.py: host spark2: lan_address: '192.168.1' ",
        ),
        ({"lan_address": "192.168.1.300"}, "is not an address; allowed: an IPv4 address such as"),
        ({"lan_address": "010.0.0.1"}, "is not an address"),
        ({"lan_address": "fe80::1"}, "is not an address"),
        ({"fabric_address": "fd00::1"}, "is not an address; allowed: an IPv4 address"),
        ({"lan_address": "0.0.0.0"}, "is not one machine's address"),
        ({"lan_address": "224.0.0.1"}, "is not one machine's address"),
        ({"lan_address": "255.255.255.255"}, "is not one machine's address"),
        ({"lan_address": 3232235787}, "3232235787 is not text; allowed: an IPv4 address"),
        ({"lan_address": ...}, "lan_address: is missing; it has no default"),
        (
            {"fabric_mtu": "9000"},
            "group_data/spark.py: host spark2: fabric_mtu: is the text '9000'",
        ),
        ({"fabric_mtu": 100}, "fabric_mtu: is 100; allowed: 1280 or more"),
        ({"fabric_device": "a" * 16}, "allowed: 15 characters or fewer"),
        ({"hcas": "^mlx5_0"}, "hcas[0]: '^mlx5_0' is not an RDMA device's name; allowed: one of"),
        ({"uncabled": "a b"}, "uncabled[0]: 'a b' is not a network device's name"),
        ({"rank": True}, "inventory/spark.py: host spark2: rank: is true; allowed: a whole number"),
        ({"rank": -1}, "rank: is -1; allowed: 0 or more"),
        ({"role": "boss"}, "role: is 'boss'; allowed: 'head' or 'worker'"),
        ({"home": "milo"}, "home: 'milo' is not an absolute path"),
        ({"waive": "FABRIC"}, "waive: needs a reason; allowed: --data waive=CODE --data reason="),
        ({"reason": "x"}, "reason: without waive"),
        ({"waive": "A,,B", "reason": "x"}, "waive[1]: '' is not a plain name"),
        ({"overwrite": "/etc/x,y"}, "overwrite[1]: 'y' is not an absolute path"),
        ({"json": "x"}, "json: is the text 'x'; allowed: true or false"),
        ({"as_json": True}, "unknown key 'as_json'"),
        ({"interval": 5}, "interval: is 5; allowed: 10 or more"),
        ({"misses": 0}, "misses: is 0; allowed: 1 or more"),
        ({"webhook_file": "hook"}, "webhook_file: 'hook' is not an absolute path"),
        ({"webhook": "ftp://h/x"}, "webhook: is not a URL; allowed: http:// or https://"),
        ({"webhook": "https://h/x", "webhook_file": "/x"}, "webhook: and webhook_file; allowed: o"),
    ],
)
def test_wrong_data(changes: dict[str, object], said: str) -> None:
    message = error_of(**changes)
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"role": "head"},
            "rig spark: has 2 heads (spark1, spark2); allowed: one host of role head",
        ),
        ({"rank": 0}, "rig spark: ranks are spark1 0, spark2 0; allowed: 0, 1, 2"),
        ({"rank": 2}, "rig spark: ranks are spark1 0, spark2 2; allowed: 0, 1, 2"),
        ({"fabric_address": ...}, "rig spark: spark2: fabric_address: is missing"),
        ({"fabric_address": "10.0.0.1"}, "two nodes share a fabric_address: 10.0.0.1, 10.0.0.1"),
        ({"recipe": "tiny"}, "recipe: hosts of one rig differ: spark1 has 'deepseek-v4-flash', sp"),
        ({"fabric_device": ...}, "rig spark: spark2: fabric_device: is missing in the inventory"),
        ({"fabric_mtu": 1500}, "fabric_mtu: hosts of one rig differ: spark1 has 9000, spark2 has"),
    ],
)
def test_hosts_that_are_no_rig(changes: dict[str, object], said: str) -> None:
    assert said in error_of(**changes)


def test_no_head_and_swapped_ranks() -> None:
    with pytest.raises(SpecError, match=r"has 0 heads \(none\)"):
        plan({"a": host(2, rank=0), "b": host(2, rank=1, lan_address="10.1.1.1")}, None, ROOT)
    with pytest.raises(SpecError, match="spark2 has rank 0; allowed: rank 0 for spark1, the head"):
        plan({"spark1": host(1, rank=1), "spark2": host(2, rank=0)}, None, ROOT)


def test_third_node_needs_a_rank() -> None:
    third = host(2, lan_address="192.168.1.13", fabric_address="10.0.0.3")
    with pytest.raises(SpecError, match="ranks are a 0, b 1, c 1"):
        plan({"a": host(1), "b": host(2), "c": third}, None, ROOT)


def test_no_hosts_is_an_error() -> None:
    with pytest.raises(SpecError, match="no hosts matched"):
        plan({}, None, ROOT)


def test_every_hosts_problems_come_together() -> None:
    with pytest.raises(SpecError) as caught:
        plan({"spark1": host(1, rank=-1), "spark2": host(2, role="x", colour=1)}, None, ROOT)
    assert [line.split(": ")[1] for line in caught.value.problems] == [
        "host spark1",
        "host spark2",
        "host spark2",
    ]


def test_profile_that_does_not_exist_lists_the_others() -> None:
    with pytest.raises(SpecError) as caught:
        spark_plan(profile="latncy")
    assert str(caught.value) == (
        "recipe deepseek-v4-flash: unknown profile 'latncy'; did you mean latency?; "
        "allowed: balanced, latency, throughput"
    )
    assert profile_name(recipe("tiny", ROOT), None) == "balanced"


def test_pyinfras_own_keys_are_its_own() -> None:
    """The list in the code is what pyinfra's connectors declare, and their values pass unread."""
    declared = ssh.connector_data_meta.keys() | fake.FakeConnector.data_meta.keys()
    assert declared | {"_sudo"} == PYINFRA_KEYS
    data = {key: object() for key in PYINFRA_KEYS - {"ssh_user"}}
    assert host_data("spark1", {**host(1), **data}, {}, HostData).ssh_user == "milo"


@pytest.mark.parametrize(
    "url", ["ftp://h/S3CRET", "https://u:S3CRET@h/", "https://h/S3CRET x", "https:///S3CRET",
            "https://h/S3CRET\n", "https://h:port/S3CRET", "S3CRET"]
)  # fmt: skip
def test_a_webhook_is_a_secret_in_every_error(url: str) -> None:
    refused = error_of(webhook=url)
    assert "webhook: is not a URL" in refused and "S3CRET" not in refused
    with pytest.raises(SpecError, match=r"webhook: hosts of one rig differ") as caught:
        both = {"spark1": host(1, webhook="https://h/S3CRET"), "spark2": host(2)}
        plan(both, None, ROOT)
    assert "S3CRET" not in str(caught.value)
    assert "S3CRET" not in repr(host_data("x", host(1, webhook="https://h/S3CRET"), {}, WatchData))


def test_lists_and_homes_are_read_as_meant() -> None:
    data = host_data("x", host(1, waive="A, B", reason="ok", overwrite=["/a"]), {}, RollbackData)
    assert (data.waive, data.overwrite) == (("A", "B"), ("/a",))
    assert host_data("x", host(1, json=True), {}, DoctorData).as_json
    assert data.node("x").home == "/home/milo"
    assert host_data("x", host(1, ssh_user="root"), {}, HostData).node("x").home == "/root"
    assert host_data("x", host(1, home="/data/milo"), {}, HostData).node("x").home == "/data/milo"


def test_each_node_has_its_own_device_and_hcas() -> None:
    """The port that has the cable may be another one on each node (vllm PR 40991)."""
    cabled = {"spark1": ("enp1s0f0np0", "rocep1s0f0,roceP2p1s0f0"), "spark2": ("bond0", ())}
    made = plan(
        {
            name: host(number, fabric_device=device, hcas=hcas, uncabled="enp1s0f1np1")
            for number, (name, (device, hcas)) in enumerate(cabled.items(), 1)
        },
        None,
        ROOT,
    )
    recipe = made.recipe.env["NCCL_IB_HCA"]
    for node, hcas in (("spark1", "=rocep1s0f0,roceP2p1s0f0"), ("spark2", recipe)):
        device, environ = cabled[node][0], made.specs[node].environ
        assert environ["NCCL_SOCKET_IFNAME"] == environ["GLOO_SOCKET_IFNAME"] == device
        assert environ["NCCL_IB_HCA"] == hcas
        assert made.requests[node].fabric_device == device
        assert made.rig.node(node).uncabled == ("enp1s0f1np1",)
        engine_file = next(d for d in made.documents[node] if d.path.endswith("node.json"))
        assert json.loads(engine_file.content)["fabric"]["device"] == device


def test_request_asks_for_what_the_plan_needs() -> None:
    made = spark_plan(deep=True)
    request = made.requests["spark2"]
    assert request.peers == ("10.0.0.1",)
    assert (request.fabric_device, request.fabric_mtu, request.deep) == ("bond0", 9000, True)
    assert request.weights == ("/home/milo/models/DeepSeek-V4-Flash",)
    assert request.images == ("ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest",)
    assert request.units == ("rigbook-engine.service", "rigbook-pair.timer")
    assert {"/var/lib/docker", "/etc", "/var/lib/rigbook"} < set(request.disks)
    assert {document.path for document in made.documents["spark2"]} < set(request.files)


def test_a_wrong_key_of_the_command_line_lists_none_of_the_inventory() -> None:
    text = error_of(profil="latency")
    assert "--data help=true lists all keys" in text and "lan_address" not in text, text
    assert "lan_address" in error_of(ssh_prot=22)
