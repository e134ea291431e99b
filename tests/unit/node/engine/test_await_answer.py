"""answer: what a start waits for, and when it gives up at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from node.core import proc
from node.core.errors import CannotRead, NodeError
from node.docker import api
from node.engine import answer, config
from node.engine.answer import Holder, Seen, ask_completion
from node.engine.config import Endpoint, Engine
from node.rules.engine import RETRY
from tests.unit.builders.engine_parts import FOREIGN
from tests.unit.builders.host_parts import OUR_PROCESSES
from tests.unit.node.support.host import Host, engine, engine_file
from tests.unit.node.support.transfers import Server, completion, serving

LOADING = (503, {"error": "loading"})
VENV: dict[str, Any] = {
    "container": None, "image": None,
    "venv": {"path": "/opt/engine/venv", "user": "milo", "version": None},
}  # fmt: skip


class Scripted:
    """Gives the replies in turn; the last one again and again."""

    def __init__(self, *replies: tuple[int, object]) -> None:
        self.replies = list(replies)

    def __call__(self, _: dict[str, Any]) -> tuple[int, object]:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@pytest.fixture(autouse=True)
def docker(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the container runs, as the test says; no waiting between two questions."""
    now = {"running": True}
    monkeypatch.setattr(api, "is_running", lambda name: now["running"])
    monkeypatch.setattr(answer, "POLL_S", 0.02)
    monkeypatch.setattr(answer, "look_at_port", lambda _: Seen((), None))
    monkeypatch.delenv("MAINPID", raising=False)
    return now


@pytest.fixture
def endpoint() -> Iterator[Server]:
    with serving(lambda body: (200, completion())) as server:
        yield server


def wait(server: Server, **changes: Any) -> str:
    return answer.await_answer(engine(url=server.url, **changes))


@pytest.mark.parametrize("status", sorted(RETRY))
def test_it_waits_while_the_engine_loads(endpoint: Server, status: int) -> None:
    endpoint.reply = Scripted((status, {}), (status, {}), (200, completion()))
    assert "tiny answered" in wait(endpoint)
    # the last one is the one around which its holder is looked at
    assert len(endpoint.got) == 4


def test_it_waits_for_the_port() -> None:
    with serving(lambda body: (200, completion())) as server:
        pass
    with pytest.raises(NodeError, match=r"no good answer after \d s of 1 s: Connection refused"):
        wait(server, start_budget_s=1)


@pytest.mark.parametrize("reply", [(500, {"error": "EngineDeadError"}), (404, {}), (400, {}),
                                   (200, completion("")), (200, completion(None)), (200, b"<html>"),
                                   (200, {"choices": []}), (302, {})])  # fmt: skip
def test_what_waiting_cannot_mend_fails_at_once(
    endpoint: Server, reply: tuple[int, object]
) -> None:
    endpoint.reply = Scripted(reply)
    started = time.monotonic()
    with pytest.raises(NodeError, match="no good answer"):
        wait(endpoint, start_budget_s=60)
    assert time.monotonic() - started < 30 and len(endpoint.got) == 1


def test_it_gives_up_when_the_container_is_gone(endpoint: Server, docker: dict[str, bool]) -> None:
    def crash(_: dict[str, Any]) -> tuple[int, object]:
        docker["running"] = len(endpoint.got) < 2
        return LOADING

    endpoint.reply = crash
    with pytest.raises(NodeError, match="the container rigbook-engine is gone"):
        wait(endpoint, start_budget_s=60)


def test_a_container_that_is_not_there_yet_is_waited_for(
    endpoint: Server, docker: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    docker["running"] = False
    endpoint.reply = Scripted(LOADING, LOADING, (200, completion()))
    assert "tiny answered" in wait(endpoint)
    monkeypatch.setattr(answer, "APPEAR_S", 0.1)
    endpoint.reply = Scripted(LOADING)
    with pytest.raises(NodeError, match="no container rigbook-engine after"):
        wait(endpoint, start_budget_s=60)


@pytest.mark.parametrize(("changes", "said"), [
    ({}, "docker run ended"), (VENV, "the engine's process ended"),
])  # fmt: skip
def test_it_gives_up_when_the_main_process_has_ended(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    """systemd hands the main process's pid to ExecStartPost."""
    main = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv("MAINPID", str(main.pid))
    endpoint.reply = lambda body: (main.kill(), LOADING)[1]
    with pytest.raises(NodeError, match=said):
        wait(endpoint, start_budget_s=60, **changes)
    main.wait()


def test_a_stop_during_the_start_ends_the_container(
    host: Host, endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd sends TERM to this program and to `docker run`, and runs no ExecStop."""
    stopped: list[tuple[str, int]] = []
    monkeypatch.setenv("RIGBOOK_ENGINE", str(engine_file(host, url=endpoint.url)))
    monkeypatch.setattr(api, "stop_container", lambda name, grace: stopped.append((name, grace)))
    endpoint.reply = lambda body: (os.kill(os.getpid(), signal.SIGTERM), LOADING)[1]
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(NodeError, match="systemd ended the start"):
            answer.run_await_answer()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == [("rigbook-engine", answer.GRACE_S)]


def test_a_key_is_an_answer_and_a_worker_has_nothing_to_wait_for(endpoint: Server) -> None:
    endpoint.reply = Scripted((401, {}))
    assert "wants a key" in wait(endpoint)
    assert "the head answers" in answer.await_answer(engine(role="worker", rank=1, endpoint=None))


@pytest.mark.parametrize(
    ("changes", "text", "environ", "key"),
    [
        # docker's file is raw, and systemd's has quotes
        ({}, 'VLLM_API_KEY="K3Y"\n', {}, 'Bearer "K3Y"'),
        (VENV, 'HF_TOKEN=t\nVLLM_API_KEY="K3Y$"\n', {}, "Bearer K3Y$"),
        # a venv's unit has it in its environment: its user may not read the file
        (VENV, None, {"VLLM_API_KEY": "K3Y"}, "Bearer K3Y"),
        ({}, "HF_TOKEN=t\n", {}, None),
        ({}, None, {}, None),
        # what no header takes is not quoted in an error about it
        ({}, "VLLM_API_KEY=K3Yü\n", {}, None),
    ],
)
def test_the_engine_is_asked_with_its_key(
    host: Host,
    endpoint: Server,
    changes: dict[str, Any],
    text: str | None,
    environ: dict[str, str],
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start is proven by a completion, not by a 401; the key is in no line of the log."""
    engine_file(host, url=endpoint.url, **changes)
    for name, value in {**environ, "RIGBOOK_ENGINE": host.env["RIGBOOK_ENGINE"]}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RIGBOOK_SECRETS", str(host.file("secrets.env", text, mode=0o600)))
    said = answer.await_answer(config.load_engine())
    assert "tiny answered" in said and "K3Y" not in said
    # whoever has the port gets no key before it is looked at who that is
    assert endpoint.keys == [None, key]


def test_a_key_that_the_engine_does_not_take_is_no_proof(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "K3Y")
    endpoint.reply = Scripted((401, {}))
    with pytest.raises(NodeError, match="401"):
        wait(endpoint)


def test_a_unit_without_the_expected_thought_does_not_start(endpoint: Server) -> None:
    """Its parser is off: verify would refuse the rig, so the unit's start does, too."""
    asked = Endpoint(endpoint.url, "tiny", True, {})
    reply = ask_completion(asked, 5.0)
    assert (reply.ok, reply.final) == (False, True) and "reasoning field is empty" in reply.detail


def test_no_proxy_is_asked_and_the_template_arguments_are_sent(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    ask_completion(Endpoint(endpoint.url, "tiny", True, {"thinking": True}), 5.0)
    assert endpoint.got[0]["chat_template_kwargs"] == {"thinking": True}
    assert endpoint.got[0]["max_tokens"] == 512


def test_a_server_that_says_nothing_is_given_up(endpoint: Server) -> None:
    endpoint.reply = lambda body: (time.sleep(30), LOADING)[1]
    started = time.monotonic()
    reply = ask_completion(engine(url=endpoint.url).endpoint, 0.3)
    assert (reply.ok, reply.final, reply.detail) == (False, False, "no answer in time")
    assert time.monotonic() - started < 15


FORMER = "port 8000 is held by pid 77 (python3, container badbad111111), not by rigbook-engine"


def test_an_answer_of_a_former_setups_engine_starts_no_unit(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 55: it took the port while ours loads; ours is not called started by its answer."""
    monkeypatch.setattr(answer, "look_at_port", lambda _: Seen((), FORMER))
    with pytest.raises(NodeError, match=re.escape(FORMER)) as caught:
        wait(endpoint, start_budget_s=60)
    assert "ss -ltnp" in caught.value.remedy and len(endpoint.got) == 1


def test_an_answer_whose_engine_cannot_be_told_is_no_start(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: Engine) -> Seen:
        raise CannotRead("docker at /run/docker.sock: timed out")

    monkeypatch.setattr(answer, "look_at_port", silent)
    with pytest.raises(NodeError, match=r"no good answer after .*: whose engine it is: docker at"):
        wait(endpoint, start_budget_s=1)


def test_an_engine_that_is_another_one_behind_the_answer_is_asked_again(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pid with another start is another process."""
    row = Holder("0.0.0.0", 8000, 910, "vllm", "rigbook-engine.service", None, 5)
    looks = [Seen((row,), None), *[Seen((row._replace(start_ticks=6),), None)] * 3]
    monkeypatch.setattr(answer, "look_at_port", lambda _: looks.pop(0))
    assert "tiny answered" in wait(endpoint)
    assert looks == [] and len(endpoint.got) == 4


@pytest.mark.parametrize(("group", "container", "foreign"), [
    ("/system.slice/rigbook-engine.service", None, False), ("/user.slice/x.scope", None, True),
    (f"/system.slice/docker-{OUR_PROCESSES}.scope", OUR_PROCESSES, False),
    (f"/system.slice/docker-{FOREIGN}.scope", OUR_PROCESSES, True),
    (f"/system.slice/docker-{OUR_PROCESSES}.scope", None, True),
])  # fmt: skip
def test_who_holds_the_port(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch, group: str, container: str | None,
    foreign: bool,
) -> None:  # fmt: skip
    """A real socket and its real holder, whose cgroup alone is a stand-in."""
    monkeypatch.undo()
    monkeypatch.setattr(proc, "cgroup", lambda _: group)
    monkeypatch.setattr(api, "identifier", lambda _: container)
    seen = answer.look_at_port(engine(url=endpoint.url))
    assert [(row.pid, row.start_ticks) for row in seen.holders] == [
        (os.getpid(), proc.stat(os.getpid()).start_ticks)
    ]
    said = f"is held by pid {os.getpid()} ("
    assert (seen.foreign is not None and said in seen.foreign) is foreign


def test_the_verb_logs_lines_and_ends_with_a_status(
    host: Host, endpoint: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own the port is this test's: an engine of nobody's."""
    path = engine_file(host, url=endpoint.url, **VENV)
    done = host.run(host.argv("answer"))
    assert done.returncode == 1 and f"is held by pid {os.getpid()} (" in done.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGBOOK_ENGINE", str(path))
        answer.run_await_answer()
    assert "tiny answered" in capsys.readouterr().out
    endpoint.reply = Scripted((500, {"error": "EngineDeadError"}))
    done = host.run(host.argv("answer"))
    assert done.returncode == 1 and done.stdout.count("\n") == 1
    assert done.stdout.startswith("answer: no good answer") and "journalctl -u" in done.stdout


@pytest.mark.parametrize(("text", "said"), [
    ("", "not JSON"), ("[]", "not an object"), ('{"format": 1}', "is missing"),
    (None, "No such file"),
])  # fmt: skip
def test_a_bad_engine_file_is_one_line(host: Host, text: str | None, said: str) -> None:
    path = engine_file(host)
    path.unlink() if text is None else path.write_text(text)
    done = host.run(host.argv("answer"))
    assert done.returncode == 1 and said in done.stdout and done.stdout.count("\n") == 1
    assert "engine.json" in done.stdout and "deploys/serve.py" in done.stdout


@pytest.mark.parametrize("change", [
    {"format": 2}, {"role": "boss"}, {"rank": "0"}, {"unit": "-x"}, {"peers": ["x"]},
    {"ports": [0]}, {"start_budget_s": 0}, {"extra": 1}, {"master": {"address": "10.0.0.1"}},
    {"memory": {"gpus": 1}}, {"fabric": []}, {"container": "a b"}, {"endpoint": {"url": "x"}},
])  # fmt: skip
def test_every_value_of_the_engine_file_is_checked(host: Host, change: dict[str, object]) -> None:
    engine_file(host, **change)
    done = host.run(host.argv("answer"))
    assert done.returncode == 1 and "engine.json: " in done.stdout, done.stdout
    assert "a fault of rignode" not in done.stdout


def test_a_venv_is_alive_while_its_process_is(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No docker is asked: it would say that there is no container."""
    monkeypatch.setattr(api, "is_running", lambda name: 1 / 0)
    monkeypatch.setenv("MAINPID", str(os.getpid()))
    endpoint.reply = Scripted(LOADING, LOADING, (200, completion()))
    assert "tiny answered" in wait(endpoint, **VENV)


def test_a_venv_whose_process_had_ended_before_is_over_at_once(
    endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd then names no main process [ran: an engine killed in its first second]."""
    endpoint.reply = Scripted(LOADING)
    monkeypatch.setenv("INVOCATION_ID", "0" * 32)
    with pytest.raises(NodeError, match="the engine's process ended"):
        wait(endpoint, start_budget_s=60, **VENV)
