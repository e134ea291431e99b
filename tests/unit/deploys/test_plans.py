"""The doctor's archive: what lies in it, and that no secret does."""

from __future__ import annotations

import json
import logging
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pydantic import JsonValue
from pyinfra.api.exceptions import DeployError

from deploys.plans import adopt, doctor, restore, stop
from deploys.plans.adopt import end_steps, grace_s, refusals, release_steps, who
from deploys.plans.engine import told as engine_told
from deploys.plans.fabric import Way, rdma_ways, state_lines, tcp_ways
from deploys.plans.restore import in_rig
from deploys.plans.rig import files_in, units_in
from deploys.plans.verify import without_thoughts
from facts.endpoint import Endpoint
from facts.plain import NcclNetwork
from gates.core import violation
from node.rules.secret import masked_text
from operations.apply import describe
from operations.run import StepFailed
from schema.artifact import Copies, NotedCopy, OtherRow
from schema.hardware import Former
from schema.load import plan, recipe
from schema.recipe import SecretSource
from schema.snapshot import Network, NodeSnapshot, ShmSegment, Unreadable
from tests.plans.support.scenario import WORKER, tiny_plan
from tests.unit.builders import host_parts, rigs
from tests.unit.builders.host_parts import link, rdma_port
from tests.unit.builders.rigs import ROOT, healthy, host, put, spark_plan

OWN, TOKEN, KEY = "s3cret-of-this-rig", "hf_abcdefghijklmnop", "sk-live-1234567890"


def test_everything_for_a_report_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIG_KEY", OWN)
    plan = spark_plan()
    secrets = {"VLLM_API_KEY": SecretSource(env="RIG_KEY"), "HF_TOKEN": SecretSource(env="ABSENT")}
    plan = replace(plan, recipe=plan.recipe.model_copy(update={"secrets": secrets}))
    seen = dict(rigs.serving(plan))
    process = {"HF_TOKEN": TOKEN, "VLLM_LOGGING_LEVEL": "INFO"}
    seen["spark1"] = rigs.put(seen["spark1"], "engine_processes.0.environ", process)
    observed = {**seen, "spark2": Unreadable(unreadable="no ssh connection")}
    rows = [{"code": "no-answer", "evidence": f"asked with {OWN}", "remedy": "http://u:pw@host/"}]
    lines = {"spark1": [f"INFO token {TOKEN}", f"got {KEY}", f"Authorization: Bearer {OWN}", "ok"]}
    path = tmp_path / "rig.tar.gz"
    doctor.write_bundle(path, plan, observed, rows, lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
                 for name in archive.getnames()}  # fmt: skip
    top = f"rigbook-{plan.rig.name}"
    assert {name.removeprefix(f"{top}/") for name in texts} == {
        "findings.json", "versions.json", "snapshots/spark1.json", "snapshots/spark2.json",
        "logs/spark1.log"}  # fmt: skip
    for name, text in texts.items():
        assert not [word for word in (OWN, TOKEN, KEY, "u:pw") if word in text], name
    snapshot = json.loads(texts[f"{top}/snapshots/spark1.json"])
    assert snapshot["engine_processes"][0]["environ"]["VLLM_LOGGING_LEVEL"] == "INFO"
    versions = json.loads(texts[f"{top}/versions.json"])
    assert versions["nodes"]["spark1"]["driver"] == "580.95.05"
    assert versions["nodes"]["spark2"] == {"unreadable": "no ssh connection"}
    assert texts[f"{top}/logs/spark1.log"].endswith("ok\n")


# every one has the same word, which must be in no file
WORD = "Sw0rdf1shSw0rdf1sh"
LEAKS = (
    f"HF_TOKEN=hf_{WORD}", f"-e VLLM_API_KEY={WORD}", f"--api-key {WORD}", f"--api-key={WORD}",
    # vLLM's own line about its arguments; it takes several keys
    f"non-default args: {{'api_key': ['x', '{WORD}'], 'max_model_len': 512}}",
    f'Environment="DB_PASSWORD=two {WORD}"', f"POSTGRES_PASSWORD='a {WORD}'", f"passwd: {WORD}",
    f"Authorization: Bearer {WORD}", f"Authorization: Basic {WORD}=", f"x-api-key: {WORD}",
    f"https://hooks.slack.com/services/T0/B0/{WORD}", f"https://ntfy.sh/{WORD}",
    f"https://discord.com/api/webhooks/1/{WORD}", f"http://me:{WORD}@host:8000/v1",
    f"https://host/x?token={WORD}&a=b", f"ghp_{WORD}", f"nvapi-{WORD}",
    f"AWS_SECRET_ACCESS_KEY={WORD}",
    f'{{"webhook": "https://host/{WORD}"}}', f"sk-{WORD}", f"hf_{WORD}",
)  # fmt: skip


def _poisoned(value: Any, leak: str) -> Any:
    """The data with the leak behind every text."""
    if isinstance(value, dict):
        return {key: _poisoned(one, leak) for key, one in value.items()}
    if isinstance(value, list):
        return [*(_poisoned(one, leak) for one in value), "--password", WORD]
    return f"{value} {leak}" if isinstance(value, str) else value


@pytest.mark.parametrize("leak", LEAKS)
def test_no_text_of_any_file_tells_it(leak: str, tmp_path: Path) -> None:
    plan = spark_plan()
    plain = rigs.serving(plan)["spark1"].to_json()
    data = {**_poisoned(plain, leak), "password": WORD, "MY_KEY": WORD}

    class Seen(Unreadable):
        def to_json(self) -> Any:
            return data

    seen = {"spark1": Seen(unreadable="x")}
    doctor.write_bundle(tmp_path / "x.tar.gz", plan, seen, [{"evidence": leak}], {"spark1": [leak]})
    with tarfile.open(tmp_path / "x.tar.gz") as archive:
        for name in archive.getnames():
            text = archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            assert WORD not in text, name


@pytest.mark.parametrize("line", [
    "Avg prompt throughput: 5.2 tokens/s, Avg generation throughput: 18.0 tokens/s, Running: 1",
    "max_tokens=512, eos_token_id=2, tokenizer='/models/x', total token count: 512",
    "GPU KV cache size: 922,496 tokens", "Basic attention of https://host/v1/models",
])  # fmt: skip
def test_what_a_model_makes_is_no_secret(line: str) -> None:
    assert masked_text(line) == line


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "rig.tar.gz"
    path.write_text("mine")
    with pytest.raises(DeployError, match=r"--data bundle: .* File exists; name a new file"):
        doctor.write_bundle(path, spark_plan(), {}, [], {})
    assert path.read_text() == "mine"


# A variable that a unit or a command line sets: its value goes by its name alone.


@pytest.mark.parametrize("line", [
    f"Environment=LITELLM_AUTH={WORD}", f'Environment="LITELLM_AUTH=two {WORD}"',
    f"Environment=MY_KEY='{WORD}'", f"/usr/bin/docker run -e OPENAI_KEY={WORD} image",
    f"MY_KEY=\"a {WORD}\"",
])  # fmt: skip
def test_its_value_is_masked(line: str) -> None:
    told = doctor.hidden_text(line, [])
    assert WORD not in told and "***" in told


@pytest.mark.parametrize("line", [
    "Environment=TOKENIZERS_PARALLELISM=false", "Environment=HF_TOKEN_PATH=/root/.token",
    "Environment=NCCL_SOCKET_IFNAME=bond0", "ExecStart=/usr/bin/vllm serve --max-num-seqs 6",
])  # fmt: skip
def test_what_is_none_stays(line: str) -> None:
    assert doctor.hidden_text(line, []) == line


# The ways between two nodes that are measured, in the two shapes and with cables crossed.

HEAD, PEER = "spark1", "spark2"


def ways(kind: Any, hosts: dict[str, Any], *changes: tuple[str, str, Any]) -> list[Way]:
    """The ways from the head to the other node, with (node, path, value) replaced."""
    made = plan(hosts, None, ROOT)
    seen = dict(rigs.healthy(made))
    for node, path, value in changes:
        seen[node] = rigs.put(seen[node], path, value)
    networks = {name: s.network for name, s in seen.items() if isinstance(s.network, Network)}
    return list(kind(made, made.rig.head, made.rig.node(PEER), networks))


def told(found: list[Way]) -> list[str]:
    """Each way in a word: its name, and the devices and rows at both ends."""
    return [
        f"{w.name}: {end(w.sender)} -> {end(w.receiver)}" for w in found
    ]  # fmt: skip


def end(one: Any) -> str:
    row = f" {one.rdma['device']}#{one.rdma['gid']}" if one.rdma else ""
    return f"{one.address} {one.device}{row}"


BONDED = {HEAD: host(1), PEER: host(2)}
TWIN_KEYS = {"fabric_device": "enp1s0f1np1", "hcas": "rocep1s0f1,roceP2p1s0f1", "fabric_mtu": 1500}
TWINS = {HEAD: host(1, **TWIN_KEYS), PEER: host(2, **TWIN_KEYS)}
CROSSED = {HEAD: host(1, hcas="rocep1s0f0"), PEER: host(2, hcas="rocep1s0f1")}
TWO_NETS = tuple(
    row
    for number, name in enumerate((HEAD, PEER), 1)
    for row in (
        (name, "network.links", (
            link("enp1s0f1np1", addresses=(f"10.0.0.{number}/24",)),
            link("enP2p1s0f1np1", addresses=(f"10.0.1.{number}/24",)))),
        (name, "network.rdma", (
            rdma_port("rocep1s0f1", f"10.0.0.{number}"),
            rdma_port("roceP2p1s0f1", "169.254.7.7", f"10.0.1.{number}"))),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hosts", "changes", "wanted"),
    [
        (rdma_ways, BONDED, (), [
            "rocep1s0f0: 10.0.0.1 bond0 rocep1s0f0#3 -> 10.0.0.2 bond0 rocep1s0f0#3",
            "rocep1s0f1: 10.0.0.1 bond0 rocep1s0f1#3 -> 10.0.0.2 bond0 rocep1s0f1#3"]),
        (tcp_ways, BONDED, (), ["bond0: 10.0.0.1 bond0 -> 10.0.0.2 bond0"]),
        (rdma_ways, TWINS, TWO_NETS, [
            "rocep1s0f1: 10.0.0.1 enp1s0f1np1 rocep1s0f1#3 -> 10.0.0.2 enp1s0f1np1 rocep1s0f1#3",
            "roceP2p1s0f1: 10.0.1.1 enP2p1s0f1np1 roceP2p1s0f1#4 -> "
            "10.0.1.2 enP2p1s0f1np1 roceP2p1s0f1#4"]),
        (tcp_ways, TWINS, TWO_NETS, [
            "enp1s0f1np1: 10.0.0.1 enp1s0f1np1 -> 10.0.0.2 enp1s0f1np1",
            "enP2p1s0f1np1: 10.0.1.1 enP2p1s0f1np1 -> 10.0.1.2 enP2p1s0f1np1"]),
        # the twins' addresses are the other way round there: what counts is the network
        (rdma_ways, TWINS, (*TWO_NETS, (PEER, "network.rdma", (
            rdma_port("rocep1s0f1", "10.0.1.2"), rdma_port("roceP2p1s0f1", "10.0.0.2")))), [
            "rocep1s0f1 -> roceP2p1s0f1: 10.0.0.1 enp1s0f1np1 rocep1s0f1#3 -> "
            "10.0.0.2 enp1s0f1np1 roceP2p1s0f1#3",
            "roceP2p1s0f1 -> rocep1s0f1: 10.0.1.1 enP2p1s0f1np1 roceP2p1s0f1#4 -> "
            "10.0.1.2 enP2p1s0f1np1 rocep1s0f1#3"]),
        # the cable is in port 0 here and in port 1 there
        (rdma_ways, CROSSED, (), ["rocep1s0f0 -> rocep1s0f1: 10.0.0.1 bond0 rocep1s0f0#3 -> "
                                  "10.0.0.2 bond0 rocep1s0f1#3"]),
        (rdma_ways, CROSSED, ((PEER, "network.rdma", ()),), []),
        (rdma_ways, CROSSED, ((HEAD, "network.rdma.2", rdma_port("rocep1s0f0")),), []),
    ],
)  # fmt: skip
def test_the_ways(kind: Any, hosts: Any, changes: Any, wanted: list[str]) -> None:
    assert told(ways(kind, hosts, *changes)) == wanted


def test_what_a_node_is_told_to_have() -> None:
    made = plan({HEAD: host(1), PEER: host(2, uncabled="enp1s0f0np0")}, None, ROOT)
    node, seen = made.rig.node(PEER), rigs.healthy(made)[PEER]
    for path, value in (
        ("network.links.0.bond_slaves_down", ("enP2p1s0f0np0", "enp1s0f0np0")),
        ("network.links.0.carrier", False),
        ("network.rdma", (rdma_port("rocep1s0f1", state="DOWN", link="Polling", netdev=None),)),
        ("network.peers", ()),
    ):
        seen = rigs.put(seen, path, value)
    assert isinstance(seen.network, Network)
    assert list(state_lines(made, node, seen.network)) == [
        "bond0: 10.0.0.2/24, MTU 9000, no carrier, slaves enP2p1s0f0np0 (DOWN), "
        "enp1s0f0np0 (never cabled)",
        "rocep1s0f1 on no netdev: DOWN, Polling; no address",
        "to spark1 10.0.0.1 not asked",
    ]
    bare = seen.network.model_copy(update={"links": (), "rdma": ()})
    assert list(state_lines(made, node, bare))[:2] == [
        "bond0: no such device", "no RDMA device: between nodes there is TCP alone",
    ]  # fmt: skip


# What ends each former setup, in order, and what is refused in one line.

TABLE = {
    # setup: before (it still serves), and the end
    "the seed's": (
        host_parts.seed(),
        ["disable vllm-ds4.service", "restart policy of container vllm_ds4: no",
         "/etc/crontab: comment out line 12"],
        ["stop vllm-ds4.service", "end the engine that runs in container vllm_ds4"],
        "unit vllm-ds4.service, crontab /etc/crontab:12, container vllm_ds4",
    ),
    "compose": (
        host_parts.compose(), ["restart policy of container llm-vllm-1: no"],
        ["stop container llm-vllm-1"], "compose project llm, container llm-vllm-1",
    ),
    "by hand, with --rm": (
        host_parts.by_hand(), [], ["end the engine that runs in container vllm_ds4"],
        "container vllm_ds4",
    ),
    "a venv under a unit": (
        host_parts.venv(), ["disable vllm.service"], ["stop vllm.service"], "unit vllm.service",
    ),
    "a venv by a shell": (
        host_parts.venv(None), [], ["end the engine that is pid 812"], "pid 812",
    ),
    # its unit is down and disabled, and the engine runs: somebody started it
    "a dormant unit": (
        Former(engines=(host_parts.engine(),),
               containers=(host_parts.container(restart_policy="no"),),
               supervisors=(host_parts.by_unit(enabled="disabled", active="inactive/dead",
                                          starts_at_boot=False),)),
        [], ["end the engine that runs in container vllm_ds4"],
        "container vllm_ds4",
    ),
    "a timer's unit": (
        host_parts.venv().model_copy(update={"supervisors": (host_parts.by_unit(
            name="vllm.service", enabled="static", triggered_by=("vllm.timer",)),)}),
        ["disable and stop vllm.timer"], ["stop vllm.service"], "unit vllm.service",
    ),
    # taken up after the kill of an operator: what is done is not asked for again
    "ended already": (
        Former(supervisors=(host_parts.by_unit(enabled="disabled", active="inactive/dead",
                                          starts_at_boot=False),),
               containers=(host_parts.container(restart_policy="no"),)),
        [], [], "",
    ),
    "nothing": (Former(), [], [], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_each_setup_is_ended_as_its_row_says(name: str) -> None:
    former, released, ended, by = TABLE[name]
    assert list(refusals(former)) == []
    assert [describe(step) for step in release_steps(former)] == released
    assert [describe(step) for step in end_steps(former)] == ended
    assert who(former) == by


def test_a_deployment_is_scaled_as_it_was_seen_and_its_pods_grace_is_waited_for() -> None:
    (step,) = end_steps(host_parts.pod())
    assert (step["op"], step["replicas"]) == ("kube", 0)
    assert (step["uid"], step["resource_version"]) == ("u-1", "7")
    assert step["container"] == "engine" and step["deployment"] == "lucebox"
    assert who(host_parts.pod()) == "Deployment default/lucebox"
    assert (grace_s(host_parts.pod()), grace_s(host_parts.seed())) == (30.0, 0.0)


REFUSED = {
    "one of two": (
        Former(engines=(host_parts.engine(), host_parts.engine(pid=900, port=8001))),
        "2 engines run here (pid 812 on port 8000, pid 900 on port 8001), and a rig has one recipe",
    ),
    "--rm": (
        Former(engines=(host_parts.engine(inside_of="main"),),
               containers=(host_parts.container(auto_remove=True),)),
        "container vllm_ds4 was made with --rm: a stop removes it",
    ),
    "a pod without a Deployment": (
        host_parts.pod(None), "what made it has to end it: kubectl describe pod default/lucebox",
    ),
    "unread": (Former(unread=("crontabs: Permission denied",)),
               "not all could be looked at: crontabs: Permission denied"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_way_back_is_refused_in_one_line(name: str) -> None:
    former, line = REFUSED[name]
    (told,) = refusals(former)
    assert line in told and "\n" not in told


def test_a_container_with_rm_that_its_unit_makes_again_is_taken() -> None:
    box = host_parts.container(auto_remove=True)
    former = Former(engines=(host_parts.engine(inside_of="main"),), containers=(box,),
                    supervisors=(host_parts.by_unit(),))  # fmt: skip
    assert list(refusals(former)) == []


# Ours is started only where the former engine has left port and memory.

HELD = violation(
    "port-taken", "lab1", "port 8000 of lab1 is taken", evidence="pid 7", remedy="end it"
)
NOTHING: Any = SimpleNamespace(plan=None)


def looks(monkeypatch: pytest.MonkeyPatch, *found: list[Any]) -> list[float]:
    """Has the gates say these in turn; gives the seconds that were waited."""
    waited: list[float] = []
    rows = list(found)
    monkeypatch.setattr(adopt, "observe", lambda *_, **__: {})
    monkeypatch.setattr(adopt, "check", lambda *_: rows.pop(0) if len(rows) > 1 else rows[0])
    monkeypatch.setattr(adopt, "gevent", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(adopt, "refusal_line", lambda left: f"nothing was changed: {left[0].code}")
    clock = SimpleNamespace(monotonic=lambda: float(100 + sum(waited)))
    monkeypatch.setattr(adopt, "time", clock)
    return waited


def test_a_port_that_is_free_a_moment_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = looks(monkeypatch, [HELD], [HELD], [])
    assert adopt._room(NOTHING, ((), None), adopt.ROOM_S) == "port and memory are free after 4 s"
    assert len(waited) == 2


def test_one_that_stays_taken_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, [HELD])
    with pytest.raises(StepFailed, match=r"after 62 s: port-taken"):
        adopt._room(NOTHING, ((), None), adopt.ROOM_S)


def test_a_waived_finding_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    short = violation("memory-short", "lab1", "short", evidence="1 GiB", remedy="x")
    looks(monkeypatch, [short])
    assert "are free" in adopt._room(NOTHING, (("memory-short",), "known"), adopt.ROOM_S)


@pytest.mark.parametrize(("argv", "value"), [
    (("vllm", "serve", "/m", "--served-model-name", "tiny", "other"), "tiny"),
    (("vllm", "serve", "/m", "--served_model_name=tiny"), "tiny"),
    (("vllm", "serve", "/m", "--served-model-name"), None), (("vllm", "serve", "/m"), None),
])  # fmt: skip
def test_the_name_that_the_former_engine_answers_to(
    argv: tuple[str, ...], value: str | None
) -> None:
    assert adopt._option(argv, "--served-model-name") == value


# What an engine is asked with while it is measured.


@pytest.mark.parametrize(
    ("defaults", "own", "sent"),
    [
        ({"thinking": True}, {}, {"thinking": False}),
        ({"enable_thinking": True}, {"x": 1}, {"x": 1, "enable_thinking": False}),
        ({"thinking": False}, {}, {}),
        (None, {"thinking": True}, {"thinking": False}),
        ({"thinking": True}, {"thinking": False}, {"thinking": False}),
        ({"greeting": "hello"}, {"x": 1}, {"x": 1}),
        (None, {}, {}),
    ],
)
def test_thoughts_are_off_where_the_recipe_turns_them_on(
    defaults: JsonValue, own: dict[str, int], sent: dict[str, object]
) -> None:
    """The seed measured its baselines so."""
    loaded = recipe("deepseek-v4-flash", ROOT)
    flags = {**loaded.vllm_serve, "default_chat_template_kwargs": defaults}
    where = Endpoint("http://127.0.0.1", "m", chat_template_kwargs=tuple(own.items()))
    found = without_thoughts(loaded.model_copy(update={"vllm_serve": flags}), where)
    assert dict(found.chat_template_kwargs) == sent


def test_the_seeds_baselines_say_how_they_were_measured() -> None:
    """256 tokens an answer, 400 in the balanced profile."""
    rows = recipe("deepseek-v4-flash", ROOT).expect.baselines
    assert len(rows) == 13
    assert {(row.profile, row.tokens) for row in rows} == {
        ("latency", 256), ("throughput", 256), ("balanced", 400),
    }  # fmt: skip


# What is told of NCCL's network on all nodes.

IB = NcclNetwork({"IB": 3}, ("IB",), ("[0]rocep1s0f1:1/RoCE",))
TCP = NcclNetwork({"Socket": 3}, ("Socket",), ("[0]bond0:10.0.0.1<0>",))
SILENT = NcclNetwork({}, (), ())


@pytest.mark.parametrize(
    ("seen", "is_rdma", "line"),
    [
        ({"a": IB, "b": IB}, True, "NCCL of a, b uses RDMA (NET/IB) through [0]rocep1s0f1:1/RoCE"),
        ({"a": IB, "b": TCP}, False, "NCCL of b uses TCP (NET/Socket), not RDMA"),
        (
            {"a": NcclNetwork({"IB": 1, "Socket": 1}, (), ()), "b": IB},
            False,
            "NCCL of a uses NET/IB and TCP (NET/Socket), not RDMA",
        ),
        (
            {"a": SILENT, "b": None},
            False,
            "the log of a does not say which network NCCL uses; the log of b does not say which "
            "network NCCL uses",
        ),
    ],
)
def test_what_is_told(seen: dict[str, NcclNetwork | None], is_rdma: bool, line: str) -> None:
    assert engine_told(seen) == (is_rdma, line)


# Before a restore every byte is compared, which takes a while: the operator sees how far it is.

LINE = "compare with 20260101T000000Z-venv-0001: 512 of 1024 MiB, about 5 s left"


@pytest.mark.parametrize("answer", [{"changed": True}, DeployError("tower: no answer")])
def test_how_far_the_comparison_is_gets_told_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    def ask_all(_: Any, verb: str, requests: Any, timeout_s: int) -> Any:
        assert (verb, requests["tower"]["dry"]) == ("tree restore", True) and timeout_s >= 1800
        gevent.sleep(0.2)
        if isinstance(answer, Exception):
            raise answer
        return {"tower": answer}

    monkeypatch.setattr(restore, "ask_all", ask_all)
    monkeypatch.setattr(restore, "REPORT_S", 0.02)
    monkeypatch.setattr(restore, "fact_of", lambda *_, **__: SimpleNamespace(working=[LINE]))
    monkeypatch.setattr(restore, "real", lambda state: state)
    state: Any = SimpleNamespace(inventory=SimpleNamespace(get_host=lambda name: name))
    with caplog.at_level(logging.INFO, "pyinfra"):
        try:
            assert restore._dry(state, "tower", "ID") == answer
        except DeployError as error:
            assert error is answer
        told = caplog.text.count(LINE)
        gevent.sleep(0.1)
    assert told >= 2 and caplog.text.count(LINE) == told


# What a snapshot cannot tell ends the run; it is never taken for what is not there.

BLIND = NodeSnapshot.model_construct(
    files=Unreadable(unreadable="EIO: /etc"), units=Unreadable(unreadable="no systemd")
)


def test_files_that_cannot_be_read_are_not_absent() -> None:
    with pytest.raises(DeployError, match="the files cannot be read: EIO: /etc"):
        files_in(BLIND)


def test_units_that_cannot_be_read_are_not_unknown() -> None:
    with pytest.raises(DeployError, match="the units cannot be read: no systemd"):
        units_in(BLIND)


# What stop says of a node that it could not see.

PLAN = tiny_plan()


def blind() -> dict[str, NodeSnapshot]:
    """Stopped, and of the worker neither docker, processes nor ports can be read."""
    seen, why = dict(healthy(PLAN)), Unreadable(unreadable="timed out")
    for section in ("docker", "engine_processes", "ports"):
        seen[WORKER] = put(seen[WORKER], section, why)
    return seen


UNSEEN = f"{WORKER}: docker not readable: timed out, processes not readable: timed out, ports not"


def test_what_was_not_seen_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "observe", lambda *_, **__: blind())
    monkeypatch.setattr(stop, "SETTLE_S", -1.0)
    closed: list[Any] = []
    rig: Any = SimpleNamespace(plan=PLAN, run=SimpleNamespace(close=lambda *a: closed.append(a)))
    with pytest.raises(StepFailed, match=UNSEEN):
        stop.verify(rig)
    assert UNSEEN in closed[0][1]


def test_no_change_is_not_said_of_a_node_that_was_not_seen() -> None:
    refuse: Any = stop.refuse_survivors
    rig: Any = SimpleNamespace(plan=PLAN, up=SimpleNamespace(all=()), snapshots=blind())
    with pytest.raises(DeployError, match=f"nothing was changed: .*{UNSEEN}"):
        refuse.__wrapped__(rig)


def test_a_segment_that_nobody_maps_is_left_over() -> None:
    segment = ShmSegment(name="psm_87eda3f8", size=1, uid=0, inode=7, mtime=1.0, mappers=())
    seen = put(healthy(PLAN)[WORKER], "shm", (segment,))
    assert stop.left_over(PLAN, seen) == ["/dev/shm/psm_87eda3f8"]


# Which copies of a node's backups are seen in the rig, and in which order.

ID = "20260101T000000Z-venv-0a0a"


def noted(is_here: bool = True) -> NotedCopy:
    """A copy that the node noted."""
    return NotedCopy(backup=ID, place="/mnt/x", unix_s=1.0, is_here=is_here, tree="/t", bytes=5)


def kept(host: str = "spark-a", problem: str | None = None) -> OtherRow:
    """A copy that another node keeps."""
    return OtherRow(host=host, backup=ID, place="/kept", tree="/t", bytes=7, problem=problem)


def rig(own: tuple[NotedCopy, ...], others: tuple[OtherRow, ...]) -> dict[str, Copies]:
    """Two nodes whose names differ from what the hosts call themselves."""
    return {
        "a": Copies(host="spark-a", noted=own, others=()),
        "b": Copies(host="spark-b", noted=(), others=others),
    }


MINE, THEIRS = ("/mnt/x", "", ""), ("/kept", "b", "spark-a")
GONE_TABLE = {
    "none": (rig((), ()), []),
    "on a disk there": (rig((noted(),), ()), [MINE]),
    "on a disk that is not mounted": (rig((noted(is_here=False),), ()), []),
    "with another node": (rig((), (kept(),)), [THEIRS]),
    "on both": (rig((noted(),), (kept(),)), [MINE, THEIRS]),
    "of another host": (rig((), (kept(host="spark-b"),)), []),
    "damaged": (rig((), (kept(problem="x"),)), []),
}


@pytest.mark.parametrize("name", GONE_TABLE)
def test_the_nearest_copy_comes_first(name: str) -> None:
    known, wanted = GONE_TABLE[name]
    assert [(one.place, one.giver, one.owner) for one in in_rig(known, "a")] == wanted
