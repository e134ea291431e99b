"""Inventory, group_data and --data: a closed set of keys, checked host by host and as a rig."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from pyinfra.connectors import fake, ssh

from schema.cluster import ClusterData
from schema.core import PYINFRA_KEYS, SpecError, known_keys
from schema.keys import (
    RUNBOOKS,
    BackupData,
    DoctorData,
    HostData,
    RollbackData,
    UpgradeData,
    WatchData,
    data_type_of,
    rigs_of,
    runbooks,
    runbooks_of,
    taken,
)
from schema.load import host_data, key_lines, plan, profile_name, recipe
from schema.plan import Plan
from schema.render_engine import LIBRARY_STATE_PATH
from tests.unit.builders.rigs import ROOT, host, spark_plan, tower_plan

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


# The data of a Kubernetes rig: a closed set, and hostile values are refused.

GOOD: dict[str, object] = {
    "lan_address": "192.168.1.31", "ssh_user": "olares", "rig": "olares",
    "namespace": "ai", "deployment": "lucedflashqwen36one",
}  # fmt: skip
HOSTILE = ("'; touch X; #", "a\nb", "$(id)", "`id`", "-rf", "a b", "A", "")


def made(**changes: object) -> ClusterData:
    """The data with some keys changed, as every runbook of such a rig takes it."""
    kind = data_type_of((), ClusterData)
    return host_data("one", {**GOOD, **changes}, dict.fromkeys(changes, "--data"), kind)


def test_defaults() -> None:
    found = made()
    assert (found.kubectl, found.vgpu_dir, found.patience_s) == ("auto", "/usr/local/vgpu", 600)


@pytest.mark.parametrize("key", ["namespace", "deployment", "container"])
@pytest.mark.parametrize("value", HOSTILE)
def test_names_of_kubernetes_are_plain(key: str, value: str) -> None:
    """Fault 51."""
    with pytest.raises(SpecError, match=key):
        made(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", "85b2ebe47bfe"),
        ("vgpu_dir", "/usr/local/v gpu"),
        ("vgpu_dir", "/a:/b"),
        ("vgpu_dir", "/a/../b"),
        ("target", "libvgpu.so"),
        ("without", "a;b"),
        ("kubectl", "kubectl --token=x"),
        ("set", {"A B": "x"}),
        ("set", {"A": "x\ny"}),
        ("set", {}),
        ("deadline", 1),
        ("port", 8000),
        ("service", "a;b"),
        ("start_budget_s", 1),
        ("wanted", -5),
        ("library", "-x"),
        ("nonsense", 1),
        ("reapply", True),
        ("waive", "libvgpu-other"),
    ],
)
def test_bad_values_are_one_line(key: str, value: object) -> None:
    with pytest.raises(SpecError) as caught:
        made(**{key: value})
    assert len(caught.value.problems) == 1 and key in caught.value.problems[0]


def test_lists_and_limits_as_they_are_typed() -> None:
    found = made(without="cuA,cuB", limit=-1, guard=True, reapply=True)
    typed = found.model_dump()
    assert typed["without"] == ("cuA", "cuB") and typed["limit"] == "-1"


def test_a_rig_has_one_host() -> None:
    with pytest.raises(SpecError, match="one host"):
        plan({"a": GOOD, "b": GOOD}, {}, Path())
    made = plan({"a": GOOD}, {}, Path())
    assert (made.rig.head.name, made.runtime, made.recipe.name) == (
        "a",
        "deployment",
        GOOD["deployment"],
    )
    assert LIBRARY_STATE_PATH in made.requests["a"].files


# Every recipe of the catalog and every rig of the inventory loads and renders.

RECIPES = sorted((ROOT / "catalog" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_profile_of_every_recipe_renders(file: Path) -> None:
    loaded = recipe(file.stem, ROOT)
    for profile in loaded.profiles:
        make = tower_plan if loaded.venv else spark_plan
        made = make(recipe=file.stem, profile=profile)
        assert made.profile == profile
        # Two of them look after a pair.
        files = 4 if loaded.venv else 6
        assert all(len(documents) == files for documents in made.documents.values())


def test_catalog_is_not_empty() -> None:
    assert {file.stem for file in RECIPES} >= {"deepseek-v4-flash", "tiny"}


def merged(rig: str, group: str = "spark") -> Plan:
    """The plan of an inventory file, its data merged as pyinfra does (the file's name wins)."""
    groups: dict[str, object] = {}
    for name in (group, rig):
        groups |= {
            key: value
            for key, value in runpy.run_path(str(ROOT / "group_data" / f"{name}.py")).items()
            if not key.startswith("__") and isinstance(value, str | int)
            if not key.isupper()
        }
    hosts = runpy.run_path(str(ROOT / "inventory" / f"{rig}.py"))[group]
    return plan({name: {**groups, **data} for name, data in hosts}, None, ROOT)


def test_spark_has_the_seeds_addresses() -> None:
    made = merged("spark")
    assert [
        (n.name, n.role, str(n.lan_address), str(n.fabric_address)) for n in made.rig.nodes
    ] == [
        ("spark1", "head", "192.168.1.11", "10.0.0.1"),
        ("spark2", "worker", "192.168.1.12", "10.0.0.2"),
    ]
    assert made.rig.fabric is not None
    assert (made.rig.head.fabric_device, made.rig.fabric.mtu) == ("bond0", 9000)
    assert (made.recipe.name, made.profile) == ("deepseek-v4-flash", "balanced")
    assert made.rig.head.home == "/home/milo"


def test_lab_has_the_same_shape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RIGBOOK_LAB_HOME", str(tmp_path))
    made = merged("lab")
    assert [(n.name, n.role, n.rank) for n in made.rig.nodes] == [
        ("lab1", "head", 0),
        ("lab2", "worker", 1),
    ]
    assert (made.rig.name, made.recipe.name) == ("lab", "tiny")


def test_tower_has_one_node_and_the_seeds_numbers() -> None:
    made = merged("tower", "tower")
    assert [(n.name, n.role, n.rank) for n in made.rig.nodes] == [("tower", "head", 0)]
    loaded = made.recipe
    assert loaded.name == "qwen3.6-27b" and loaded.container is None and loaded.venv is not None
    assert loaded.venv.version == "0.19.2rc1"
    assert [tool.id for tool in loaded.patch_tools] == ["genesis"]
    assert [b.tokens_per_s for b in loaded.expect.baselines] == [79.4]
    argv = made.specs["tower"].argv
    assert argv[:3] == ("/opt/genesis/venv/bin/vllm", "serve", "/home/milo/models/Qwen3.6-27B")
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert '"method":"mtp"' in argv[argv.index("--speculative-config") + 1]


def test_the_rehearsal_tower_has_the_same_shape(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RIGBOOK_LAB_HOME", str(tmp_path))
    made = merged("labtower", "tower")
    assert [(n.name, n.role, str(n.lan_address)) for n in made.rig.nodes] == [
        ("tower1", "head", "10.88.0.51")
    ]
    assert (made.rig.name, made.recipe.name) == ("labtower", "tiny-venv")


def test_deepseek_keeps_what_the_seed_says() -> None:
    loaded = recipe("deepseek-v4-flash", ROOT)
    assert loaded.weights.shards == 46
    assert loaded.expect.start_budget_s == 900
    assert loaded.expect.reasoning
    assert loaded.expect.tools
    assert loaded.default_profile == "balanced"
    rates = {(b.profile, b.concurrency): b.tokens_per_s for b in loaded.expect.baselines}
    assert len(rates) == len(loaded.expect.baselines) == 13
    assert rates["throughput", 16] == 163.2
    assert rates["latency", 1] == 37.8
    assert rates["balanced", 8] == 105.0
    patch, inductor = loaded.patches
    assert (patch.contains, patch.count) == ("empty_cache", 2)
    assert (inductor.id, inductor.versions) == ("inductor-functionalization", "<0.24")
    assert [(rule.name, rule.value) for rule in loaded.forbidden_env] == [
        ("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    ]


def test_the_recipe_that_cannot_start_differs_by_its_flag() -> None:
    made = spark_plan(recipe="broken", recipes_dir="tests/system/lab/recipes")
    tiny = spark_plan(recipe="tiny")
    extra = set(made.specs["spark1"].argv) - set(tiny.specs["spark1"].argv)
    assert extra == {"--rigbook-no-such-flag"}
    assert made.specs["spark1"].environ == tiny.specs["spark1"].environ
    assert made.recipe.container == tiny.recipe.container


# A type for each runbook: its keys are those of its page, its deploy file is there.

PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))
OF_A_RUNBOOK = re.compile(r"deploys/(\w+)\.py([^`\n]*)")


def keys_of(runbook: str) -> set[str]:
    """What the runbook takes, on a Kubernetes rig as well."""
    return {key for kind in RUNBOOKS[runbook] for key in taken(kind)}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_each_key_that_a_page_names_is_one_of_its_runbook(page: Path) -> None:
    """In a command: of the runbook in that command; in a table: of the page's own; in a sentence:
    of one that the page names."""
    text = page.read_text()
    for name, words in OF_A_RUNBOOK.findall(text):
        assert set(re.findall(r"--data (\w+)=", words)) <= keys_of(name), (name, words)
    for rows in re.findall(r"^\| key \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
        first = [row.split("|")[1] for row in rows.splitlines()]
        assert set(re.findall(r"`(\w+)`", "".join(first))) <= keys_of(page.stem)
    named = {page.stem, *(name for name, _ in OF_A_RUNBOOK.findall(text))}
    assert set(re.findall(r"--data (\w+)=", text)) <= set().union(*map(keys_of, named))


def test_every_page_has_its_types() -> None:
    assert [page.stem for page in PAGES] == list(RUNBOOKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_each_key_of_a_runbook_stands_on_its_page(page: Path) -> None:
    text = page.read_text()
    own = {
        key for kind in RUNBOOKS[page.stem] for key in {*taken(kind)} - {*known_keys(rigs_of(kind))}
    }
    assert {key for key in own if not re.search(rf"--data {key}=|`{key}[`=]", text)} == set()


UNITS = "seconds|bytes|MiB|looks|starts|backups|tokens|rounds|answers"


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_help_has_each_key_on_a_line_of_its_own(runbook: str) -> None:
    """What it is for, its type and its default; a number has a unit, unless it is a name."""
    lines = [line for line in key_lines(runbook) if line.startswith("  ")]
    keys = [line.split(":")[0].strip() for line in lines]
    assert sorted(keys) == sorted(key for kind in RUNBOOKS[runbook] for key in taken(kind))
    for line in lines:
        assert re.match(r"  \w+: \S.* \(\S.*; (default: .+|required)\)$", line)
        assert "default: (" not in line, "that is Python: nobody can type it"
        if "(whole number" in line and not re.match(r"  (rank|port|device):", line):
            assert re.search(rf"\d ({UNITS});", line)


def test_one_type_for_several_runbooks_and_for_somebodys_own_deploy() -> None:
    both = data_type_of(("upgrade", "watch"), HostData)
    assert issubclass(both, UpgradeData) and issubclass(both, WatchData)
    for rigs in (HostData, ClusterData):
        every = set().union(*map(taken, runbooks(rigs).values()))
        assert set(taken(data_type_of(("mine",), rigs))) == every
    assert "waive" in taken(data_type_of(("verify", "serve"), HostData))
    assert "waive" not in taken(data_type_of(("verify", "wake"), HostData))
    assert data_type_of(("stop",), HostData) is runbooks(HostData)["stop"]
    assert runbooks_of("tree", HostData) == ["backup"]
    assert runbooks_of("limit", ClusterData) == ["gpu_limit"]
    assert runbooks_of("limit", HostData) == []


def test_a_value_for_another_runbook_is_checked_where_it_describes_the_host() -> None:
    """It may stand in group_data with any runbook, and is wrong with any."""
    fine = host(1, misses=2, keep=9)
    assert host_data("spark1", fine, {}, BackupData).keep == 9
    for wrong in ({"misses": "x"}, {"webhook": "https://h/x", "webhook_file": "/x"}):
        with pytest.raises(SpecError, match=r"misses|webhook"):
            host_data("spark1", host(1, **wrong), {}, BackupData)
