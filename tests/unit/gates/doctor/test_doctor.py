"""What the endpoint says to the doctor, and what that means."""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from facts.endpoint import Endpoint, probe
from gates import unit
from gates.core import CODES, Gate, Layer, Violation, violation
from gates.doctor import CAUSES, StripState, examine, explain, went_back_lines
from gates.endpoint import answered
from schema import render_unit
from schema.artifact import Probe
from schema.snapshot import GhostFile, Override, Unit
from tests.unit.builders import host_parts, rigs
from tests.unit.builders.host_parts import change
from tests.unit.builders.pages import finding, look
from tests.unit.builders.rigs import spark_plan

PLAN = spark_plan()
URL = "http://192.168.1.11:8000"


class Double:
    """Stand-in for the engine's API; `say`: path to (status, body), or None to cut the line."""

    def __init__(self) -> None:
        self.say: dict[str, tuple[int, Any] | None] = {
            "/health": (200, ""),
            "/v1/models": (200, {"data": [{"id": "tiny"}]}),
            "/metrics": (200, 'vllm:generation_tokens_total{model_name="tiny"} 7.0\n'),
            "/v1/chat/completions": (200, {"choices": [{"message": {"content": "Hi"}}]}),
        }
        self.slow: dict[str, float] = {}
        self.asked: list[dict[str, Any]] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(double.slow.get(self.path, 0))
                said = double.say[self.path]
                if said is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                body = said[1] if isinstance(said[1], str) else json.dumps(said[1])
                try:
                    self.send_response(said[0])
                    self.end_headers()
                    self.wfile.write(body.encode())
                except OSError:
                    return

            def do_POST(self) -> None:
                double.asked.append(
                    json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )
                if double.slow.get(self.path):
                    double.say["/metrics"] = (200, "vllm:generation_tokens_total 19.0\n")
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        serve = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        serve.start()

    def ask(self, budget_s: float = 3.0) -> Probe:
        return probe(Endpoint(self.url, "tiny"), budget_s)


@pytest.fixture
def engine() -> Iterator[Double]:
    double = Double()
    yield double
    double.server.shutdown()
    double.server.server_close()


def chat(content: Any, **more: Any) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": content, **more}}]}


def test_a_healthy_endpoint(engine: Double) -> None:
    seen = engine.ask()
    assert (seen.failure, seen.health, seen.models, seen.served) == (None, 200, 200, ("tiny",))
    assert engine.asked[0]["model"] == "tiny" and engine.asked[0]["max_tokens"] <= 8


def test_reasoning_alone_is_an_answer(engine: Double) -> None:
    """A thinking model has no content in its first tokens; the engine answers all the same."""
    engine.say["/v1/chat/completions"] = chat(None, reasoning="Let me")
    assert engine.ask().failure is None


@pytest.mark.parametrize(
    ("say", "failure"),
    [
        ((500, "EngineDeadError"), "status"),
        ((404, "no such model"), "status"),
        (chat(""), "empty"),
        (chat(None), "empty"),
        ((200, "<html>"), "empty"),
        ((200, {"choices": []}), "empty"),
        ((200, []), "empty"),
        (None, "disconnected"),
    ],
)
def test_healthy_and_cannot_answer(engine: Double, say: Any, failure: str) -> None:
    engine.say["/v1/chat/completions"] = say
    seen = engine.ask()
    assert (seen.failure, seen.models) == (failure, 200)
    assert seen.detail.startswith(engine.url)


def test_nobody_listens(engine: Double) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    seen = probe(Endpoint(f"http://127.0.0.1:{port}", "tiny"))
    assert (seen.failure, seen.health) == ("refused", None) and time.monotonic() - started < 15


def test_a_busy_engine_makes_tokens_for_others_meanwhile(engine: Double) -> None:
    engine.slow["/v1/chat/completions"] = 3.0
    seen = engine.ask(0.6)
    assert (seen.failure, seen.generated) == ("timeout", 12.0)


def test_a_server_that_hangs_is_left_in_time(engine: Double) -> None:
    engine.slow = dict.fromkeys(engine.say, 30.0)
    started = time.monotonic()
    seen = engine.ask(1.0)
    assert seen.failure == "timeout" and seen.health is None and seen.generated is None
    assert time.monotonic() - started < 15


def told(seen: Probe, after: Any = None) -> list[Violation]:
    before = rigs.serving(PLAN)
    return answered(PLAN, seen, before, after or before)


def test_an_answer_is_no_finding() -> None:
    assert told(Probe(URL, "a first answer in 0.2 s")) == []


def test_slow_is_a_warning_and_silence_blocks() -> None:
    (slow,) = told(Probe(URL, "d", "timeout", models=200, generated=40.0, seconds=5.0))
    assert (slow.code, slow.severity) == ("answer-slow", "warn") and "40 tokens" in slow.evidence
    for generated in (0.0, None):
        (hung,) = told(Probe(URL, "d", "timeout", models=200, generated=generated))
        assert (hung.code, hung.severity) == ("no-answer", "block")
        assert "verify.py" in hung.remedy and "restart.py" in hung.remedy
    (silent,) = told(Probe(URL, "refused", "refused"))
    assert silent.code == "no-answer" and "serve.py" in silent.remedy


def test_the_engine_that_its_first_chat_kills() -> None:
    """/health 200, models listed, the chat cut off; a look later the unit restarts (lab-notes)."""
    seen = Probe(URL, "RemoteProtocolError", "disconnected", None, 200, 200, ("tiny",))
    after = rigs.serving(PLAN)
    words = ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler",)
    dying = host_parts.unit(sub_state="auto-restart", active_state="activating", errors=words)
    after["spark1"] = rigs.put(after["spark1"], "units.0", dying)
    (one,) = told(seen, after)
    assert (one.code, one.node, one.severity) == ("cannot-answer", "spark1", "block")
    assert "/health 200, /v1/models 200 (tiny)" in one.evidence
    assert "auto-restart after the question" in one.evidence and "no compiler" in one.cause
    (alive,) = told(seen)
    assert alive.cause == "" and "after the question" not in alive.evidence


def test_a_wedged_pair_explains_the_500() -> None:
    before = rigs.serving(PLAN)
    for node in before:
        before[node] = rigs.put(before[node], "connections", ())
    seen = Probe(URL, "HTTP 500", "status", 500, 200, 200, ("tiny",))
    found = [v for v in examine(PLAN, before, seen) if v.severity == "block"]
    assert [v.code for v in found] == ["wedged-pair", "cannot-answer"]
    assert found[0].explains == ("cannot-answer@spark1",)


# What the doctor says beside its findings: a change that was taken back, and why.

HEAD = "spark1"
# serve's own reason, as a start on an H200 that lacked memory left it (2026-11-23)
REASON = (
    "gputower: the engine ended (exit status 1) and systemd restarts it gputower: root cause: "
    "ValueError: Free memory on device cuda:0 (41.72/139.8 GiB) on startup is less than desired "
    "GPU memory utilization (0.3, 41.94 GiB). (vllm/v1/worker/utils.py:415 in request_memory)"
)


@pytest.mark.parametrize(
    ("status", "age_s", "reason", "says"),
    [
        ("ROLLED_BACK", 60, REASON, "was taken back: root cause: ValueError: Free memory"),
        ("ROLLED_BACK", 60, "node undo by hand", "was taken back: node undo by hand"),
        ("ROLLED_BACK", 60, "root cause: --api-key sk-12345678 is not valid", "root cause"),
        ("ROLLED_BACK", 90000, REASON, None),
        ("ROLLED_BACK", 60, None, None),
        ("COMMITTED", 60, REASON, None),
    ],
)
def test_the_newest_change_that_went_back_is_told(
    status: str, age_s: float, reason: str | None, says: str | None
) -> None:
    plan = spark_plan()
    seen = rigs.healthy(plan)
    closed = seen[HEAD].identity.clock_unix_s - age_s
    row = change(status).model_copy(update={"closed_unix_s": closed, "reason": reason})
    seen[HEAD] = rigs.put(seen[HEAD], "journal.changes", (row, change("COMMITTED")))
    lines = [line for line in went_back_lines(seen) if line.startswith(HEAD)]
    assert len(lines) == (says is not None)
    assert says is None or (says in lines[0] and row.id in lines[0])
    assert "sk-12345678" not in "".join(lines)


# Which finding explains which, and in what order they stand.

RANK_HEAD, WORKER = "spark1", "spark2"


def made(code: str, node: str | None = RANK_HEAD, **more: Any) -> Violation:
    return violation(code, node, "s", evidence="e", remedy="r", **more)


def order(*findings: Violation) -> list[str]:
    return [found.key for found in explain(findings, {RANK_HEAD: 0, WORKER: 1})]


def test_every_code_has_a_cause_and_names_known_codes_only() -> None:
    assert set(CAUSES) == set(CODES)
    for code, cause in CAUSES.items():
        assert cause.text and "\n" not in cause.text
        named = {*cause.here, *cause.anywhere, *cause.until}
        assert named <= set(CODES) and code not in named, code


def test_the_table_has_no_circle() -> None:
    left = {code: {*cause.here, *cause.anywhere} for code, cause in CAUSES.items()}
    while left:
        ends = [code for code, effects in left.items() if not effects & left.keys()]
        assert ends, f"these explain each other: {sorted(left)}"
        for code in ends:
            del left[code]


def test_a_cause_of_this_node_and_of_any_node() -> None:
    down = [made("unit-ghost"), made("engine-down"), made("engine-down", WORKER),
            made("no-answer")]  # fmt: skip
    ghost, *_ = explain(down, {RANK_HEAD: 0, WORKER: 1})
    assert ghost.explains == ("engine-down@spark1", "no-answer@spark1")
    elsewhere, *_ = explain([made("unit-ghost", WORKER), made("engine-down"), made("no-answer")])
    assert elsewhere.explains == ("no-answer@spark1",)


def test_fabric_down_explains_ports_engines_and_the_endpoint() -> None:
    first, *rest = explain([made("no-answer"), made("engine-down"), made("port-taken"),
                            made("fabric-ping", WORKER), made("fabric-down")])  # fmt: skip
    assert first.code == "fabric-down"
    assert {*first.explains} == {found.key for found in rest}


def test_a_throttled_gpu_explains_a_slow_answer_of_the_rig() -> None:
    """D3: decode at half its speed, and nothing in any log."""
    slow, gpu = made("answer-slow"), made("gpu-throttled", WORKER)
    first, second = explain([slow, gpu])
    assert (first.code, first.explains) == ("gpu-throttled", ("answer-slow@spark1",))
    assert second.explained_by == ("gpu-throttled@spark2",)


def test_an_orphan_explains_the_port_it_holds() -> None:
    first, second = explain([made("port-taken"), made("engine-orphan")])
    assert (first.code, first.explains) == ("engine-orphan", ("port-taken@spark1",))
    assert second.explained_by == ("engine-orphan@spark1",)


def test_warnings_without_a_consequence_stand_last() -> None:
    assert order(made("driver-stand-in"), made("engine-down"), made("page-cache")) == [
        "page-cache@spark1", "engine-down@spark1", "driver-stand-in@spark1"]  # fmt: skip


def test_a_cause_in_a_higher_layer_still_comes_first() -> None:
    """Memory is short because a foreign engine holds it: that one is to be ended."""
    assert order(made("memory-short"), made("foreign-engine")) == [
        "foreign-engine@spark1", "memory-short@spark1"]  # fmt: skip


def test_a_ghost_never_got_as_far_as_memory_or_flags() -> None:
    late = [made("page-cache"), made("forbidden-env", severity="warn"), made("drift")]
    found = {v.code: v for v in explain([*late, made("unit-ghost"), made("engine-down")])}
    assert found["engine-down"].explained_by == ("unit-ghost@spark1",)
    assert all(found[v.code].explains == () for v in late)
    # On the other node nothing stands between the page cache and the engine.
    other = explain([made("page-cache", WORKER), made("unit-ghost"), made("engine-down", WORKER)])
    assert next(v for v in other if v.code == "page-cache").explains == ("engine-down@spark2",)


def test_a_specific_cause_wins_over_the_tables() -> None:
    (told,) = explain([made("crash-loop", cause="it ran out of discs")])
    (plain,) = explain([made("crash-loop")])
    assert (told.cause, plain.cause) == ("it ran out of discs", CAUSES["crash-loop"].text)


def test_the_order_does_not_depend_on_the_order_of_the_gates() -> None:
    codes = ["no-answer", "drift", "engine-down", "unit-ghost", "page-cache", "fabric-mtu",
             "memory-short", "foreign-engine", "driver-stand-in", "wedged-pair"]  # fmt: skip
    some = [made(code, node) for code, node in itertools.product(codes, (RANK_HEAD, WORKER))]
    wanted = order(*some)
    shuffle = random.Random(7)
    for _ in range(20):
        shuffle.shuffle(some)
        assert order(*some) == wanted
    assert len(wanted) == len(some)


# The remedy of a ghost: units of others are repointed by a drop-in, ours are written by serve.

DS4 = "vllm-ds4-head.service"
GONE = "/workspace/vllm-head-090.sh"


def remedy(gate: Gate, one: Unit) -> str:
    """The remedy for the one finding about this unit on the head."""
    seen = rigs.healthy(PLAN)
    seen[HEAD] = rigs.put(seen[HEAD], "units", (one,))
    (found,) = gate(PLAN, seen)
    return found.remedy


def test_a_unit_of_others_is_repointed_by_a_drop_in() -> None:
    ghost = host_parts.unit(
        name=DS4, exec_start=(GONE, "vllm"), exec_start_exists=False, fragment="/x"
    )
    assert remedy(unit.unit_ghost, ghost) == (
        f"pyinfra INVENTORY deploys/unit.py --data unit={DS4} --data only=spark1 "
        "--data 'exec_start=/PATH/OF/PROGRAM ARGUMENTS'"
    )
    before = GhostFile(step="ExecStartPre", path="/opt/vllm-clean.sh")
    pre = host_parts.unit(name=DS4, exec_start=("/bin/vllm",), ghosts=(before,))
    assert "deploys/unit.py" not in remedy(unit.unit_ghost, pre), "it sets ExecStart= alone"


def test_a_ghost_behind_docker_exec_is_repointed_too() -> None:
    inside = GhostFile(step="ExecStart", path=GONE, container="vllm_ds4")
    argv = ("/usr/bin/docker", "exec", "vllm_ds4", "bash", GONE)
    said = remedy(unit.script_ghost, host_parts.unit(name=DS4, exec_start=argv, ghosts=(inside,)))
    assert said.startswith(f"pyinfra INVENTORY deploys/unit.py --data unit={DS4}")
    assert "deploys/serve.py" in said


def test_ours_stays_with_serve_and_loses_the_drop_in_that_broke_it() -> None:
    stale = host_parts.unit(exec_start=(GONE,), exec_start_exists=False)
    assert remedy(unit.unit_ghost, stale) == "pyinfra INVENTORY deploys/serve.py"
    # the program itself: serve's first call installs it again
    lost = GhostFile(step="ExecStartPre", path=render_unit.program_path())
    assert (
        remedy(unit.unit_ghost, host_parts.unit(ghosts=(lost,)))
        == "pyinfra INVENTORY deploys/serve.py"
    )
    path = f"/etc/systemd/system/{stale.name}.d/50-ghost.conf"
    torn = Override(path=path, exec_start=(GONE,), resets=True)
    broken = stale.model_copy(update={"drop_ins": (path,), "overrides": (torn,)})
    said = remedy(unit.unit_ghost, broken)
    assert f"--data unit={stale.name} --data drop_in=50-ghost --data remove=true" in said
    assert said.endswith("then pyinfra INVENTORY deploys/restart.py")
    odd = torn.model_copy(update={"path": f"/run/systemd/system/{stale.name}.d/x.conf"})
    elsewhere = broken.model_copy(update={"overrides": (odd,)})
    assert "systemctl cat" in remedy(unit.unit_ghost, elsewhere)


# The strip: the worst finding of a layer, on its node; what was not asked is not called well.

MTU = finding("fabric-mtu", "spark1", "MTU below 9000")
NICS = finding("nic-errors", "spark1", "errors grew")
MEMORY = finding("memory-unreadable", "spark2", "could not be read", unknown=True)
RIG = finding("other-rig", None, "another rig's")
STRIP_GONE = finding("nodes-reachable", "spark2", "no ssh connection")
TABLE: dict[str, tuple[tuple[object, ...], str | None, str, Layer, StripState | None]] = {
    "nothing": ((), None, "spark1", Layer.FABRIC, "ok"),
    "it blocks": ((MTU,), None, "spark1", Layer.FABRIC, "block"),
    "on its node alone": ((MTU,), None, "spark2", Layer.FABRIC, "ok"),
    "in its layer alone": ((MTU,), None, "spark1", Layer.STORAGE, "ok"),
    "it warns": ((NICS,), None, "spark1", Layer.FABRIC, "warn"),
    "the worst of two": ((NICS, MTU), None, "spark1", Layer.FABRIC, "block"),
    "unknown is no block": ((MEMORY,), None, "spark2", Layer.MEMORY, "unknown"),
    "the rig's is each node's": ((RIG,), None, "spark2", Layer.FIRMWARE, "block"),
    "a silent node": ((STRIP_GONE,), "spark2", "spark2", Layer.DRIVER, "unknown"),
    "why it is silent": ((STRIP_GONE,), "spark2", "spark2", Layer.FIRMWARE, "block"),
    "beside a silent node": ((STRIP_GONE,), "spark2", "spark1", Layer.DRIVER, "ok"),
    "a worker has no endpoint": ((), None, "spark2", Layer.ENDPOINT, None),
    "the head has": ((), None, "spark1", Layer.ENDPOINT, "ok"),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_layer_has_the_worst_that_was_found(name: str) -> None:
    found, lost, node, layer, state = TABLE[name]
    assert look((), found, lost).strips[node].get(layer) == state  # type: ignore[arg-type]


def test_an_endpoint_that_was_not_asked_is_in_no_strip() -> None:
    made = look((), (), probed=False).strips
    assert all(Layer.ENDPOINT not in strip for strip in made.values())


def test_layers_come_lowest_first() -> None:
    assert [*look((), ()).strips["spark1"]] == [*Layer]
