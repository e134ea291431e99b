"""watch: misses, notices, repeats, a webhook that is down, secrets, and a kill in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node import health
from node.core import proc
from node.engine import answer, silence
from node.engine import watch as engine_watch
from node.engine.silence import Watch
from node.rules.engine import Reply
from tests.unit.node.support.host import Host, engine_file
from tests.unit.node.support.transfers import completion, serving
from tests.unit.node.support.watched import SECRET, Rig


@pytest.fixture
def rig(host: Host) -> Iterator[Rig]:
    made: list[Rig] = []
    with (
        serving(lambda body: made[0].reply) as endpoint,
        serving(lambda body: made[0].taken) as hook,
    ):
        made.append(Rig(host, endpoint, hook))
        yield made[0]
        assert SECRET not in made[0].logged


DOWN = (500, {"error": "EngineDeadError"})
UP = (200, completion())
OTHER = (200, completion(model="cloud-large"))


def test_an_engine_that_answers_is_not_worth_a_notice(rig: Rig) -> None:
    assert rig.look() == "" and rig.look() == ""
    assert rig.told() == [] and rig.state()["status"] == "up"
    asked = rig.endpoint.got[0]
    assert rig.endpoint.paths[0] == "/v1/chat/completions"
    assert (asked["model"], asked["max_tokens"]) == ("tiny", 16)


def test_whoever_holds_the_port_gets_no_key_and_is_not_the_engine(rig: Rig) -> None:
    """This process answers in the engine's place, or in that of a gateway that is watched."""
    rig.host.env["RIGBOOK_SECRETS"] = str(rig.file("secrets.env", f"VLLM_API_KEY={SECRET}\n"))
    rig.look()
    engine_file(rig.host, url=rig.endpoint.url)
    rig.look()
    engine_file(rig.host, url=rig.hook.url)
    rig.look()
    assert rig.endpoint.keys == [None, None, None]
    venv = {"path": "/opt/v", "user": "nobody", "version": None}
    engine_file(rig.host, url=rig.endpoint.url, container=None, image=None, venv=venv)
    assert "not this engine: port" in rig.look() and rig.look() and rig.look()
    assert rig.state()["status"] == "down" and set(rig.endpoint.keys) == {None}


def test_three_misses_are_told_once_and_the_recovery_too(rig: Rig) -> None:
    assert "miss 1 of 3: HTTP 500" in rig.answers(DOWN)
    began = time.time()
    rig.answers(DOWN)
    assert rig.told() == []
    assert "is down since" in rig.answers(DOWN) and rig.told() == ["down"]
    notice = rig.hook.got[0]
    assert {k: notice[k] for k in ("rig", "node", "model", "status", "misses")} == {
        "rig": "lab", "node": "lab1", "model": "tiny", "status": "down", "misses": 3,
    }  # fmt: skip
    assert "EngineDeadError" in notice["detail"] and "HTTP 500" in notice["text"]
    since = time.mktime(time.strptime(notice["since"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert abs(since - began) < 10
    rig.answers(DOWN, DOWN)
    assert rig.told() == ["down"]
    assert "answers again" in rig.answers(UP, UP) and rig.told() == ["down", "up"]


def test_two_misses_are_no_outage(rig: Rig) -> None:
    rig.answers(DOWN, DOWN, UP, DOWN, DOWN)
    assert rig.told() == [] and rig.state()["misses"] == 2


def test_it_is_repeated_after_an_hour(rig: Rig) -> None:
    rig.answers(DOWN, DOWN, DOWN)
    told = rig.state()["told_unix_s"]
    rig.alter(told_unix_s=told - 3500)
    rig.answers(DOWN)
    assert rig.told() == ["down"]
    rig.alter(told_unix_s=told - 3700)
    rig.answers(DOWN, DOWN)
    assert rig.told() == ["down", "down"]


def test_another_model_is_a_fallback(rig: Rig) -> None:
    rig.answers(OTHER, OTHER)
    assert rig.told() == ["fallback"] and "cloud-large" in rig.hook.got[0]["text"]
    rig.answers(UP)
    assert rig.told() == ["fallback", "up"]


def test_a_webhook_that_is_down_gets_its_notices_later_in_order(rig: Rig) -> None:
    said = rig.answers(DOWN, DOWN, DOWN, DOWN, UP, taken=(503, {}))
    assert "the webhook did not take a notice: HTTP 503; kept" in said
    rig.hook.got.clear()
    rig.answers(UP, UP)
    assert rig.told() == ["down", "up"]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_what_is_not_taken_is_kept(rig: Rig, status: int) -> None:
    """A redirect would become a GET without the notice: it counts as not taken."""
    assert f"HTTP {status}; kept" in rig.answers(OTHER, taken=(status, {}))
    assert len(rig.state()["pending"]) == 1


def test_the_secret_is_nowhere_but_in_its_file(rig: Rig) -> None:
    hook = rig.file("hook", f"{rig.hook.url}/{SECRET}\n")
    rig.configure(webhook_file=str(hook))
    rig.hook.close()
    rig.reply = OTHER
    assert "Connection refused; kept" in rig.look()
    assert SECRET not in rig.state_file.read_text()
    assert rig.state_file.stat().st_mode & 0o777 == 0o600
    for text in ("ftp://h/" + SECRET, f"http://h:x/{SECRET}", f"http://u:{SECRET}@h/"):
        hook.write_text(text)
        assert "not an http or https URL" in rig.look(1)


def test_a_webhook_file_that_others_may_read_is_refused(rig: Rig) -> None:
    hook = rig.file("hook", f"{rig.hook.url}/{SECRET}")
    hook.chmod(0o644)
    rig.configure(webhook_file=str(hook))
    rig.reply = OTHER
    assert "is not root's alone" in rig.look(1)
    assert rig.told() == [] and len(rig.state()["pending"]) == 1
    hook.chmod(0o600)
    rig.look()
    assert rig.told() == ["fallback"]
    link = rig.host.root / "link"
    link.symlink_to(hook)
    rig.configure(webhook_file=str(link))
    rig.look(1)


def test_without_a_webhook_the_journal_is_told(rig: Rig) -> None:
    rig.configure()
    said = [rig.answers(DOWN) for _ in range(4)]
    assert "is down since" in said[2] and "is down since" not in said[3]
    assert rig.state()["pending"] == []


def test_a_kill_after_the_post_repeats_one_notice_at_most(rig: Rig) -> None:
    """The receiver ends the program at the moment when it has the notice."""
    rig.reply = OTHER
    running: list[subprocess.Popen[bytes]] = []

    def kill_it(_: dict[str, Any]) -> tuple[int, object]:
        if running:
            os.kill(running.pop().pid, signal.SIGKILL)
        return 200, {}

    rig.hook.reply = kill_it
    running.append(subprocess.Popen(rig.host.argv("watch"), env=rig.host.environ()))
    assert running[0].wait(20) == -signal.SIGKILL
    assert rig.told() == ["fallback"] and rig.state()["status"] == "fallback"
    rig.look()
    rig.look()
    assert rig.told() == ["fallback", "fallback"]


def test_a_damaged_state_is_started_anew(rig: Rig) -> None:
    rig.look()
    rig.state_file.write_text("{")
    assert "damaged" in rig.look()
    assert rig.state()["status"] == "up"


def test_an_outage_before_a_long_pause_is_no_news(rig: Rig) -> None:
    """A watch that was removed while the rig was down, and comes back a month later."""
    rig.answers(DOWN, DOWN, DOWN)
    rig.alter(looked_unix_s=time.time() - 90000)
    rig.answers(UP)
    assert rig.told() == ["down"] and rig.state()["status"] == "up"


def test_an_engine_that_wants_a_key_lives(rig: Rig) -> None:
    rig.answers(*[(401, {"error": "key"})] * 4)
    assert rig.told() == [] and rig.state()["misses"] == 0


@pytest.mark.parametrize("change", [
    {"misses": 0}, {"format": 2}, {"extra": 1}, {"webhook": "x"}, {"rig": "a\n"},
    {"endpoint": {"url": "http://h"}},
])  # fmt: skip
def test_a_bad_configuration_is_one_line(rig: Rig, change: dict[str, object]) -> None:
    rig.configure(**change)
    said = rig.look(1)
    assert said.count("\n") == 1 and "watch.json" in said and "deploys/watch.py" in said


def test_notices_do_not_grow_without_end() -> None:
    """A webhook that is gone for months, and an endpoint that flaps: ten an hour, with a count."""
    endpoint = {"url": "http://h", "model": "m", "reasoning": False, "chat_template_kwargs": {}}
    conf = silence.parse_watch(
        {
            "format": 1,
            "rig": "r",
            "node": "n",
            "endpoint": endpoint,
            "misses": 1,
            "webhook": None,
            "webhook_file": None,
        }
    )
    state = engine_watch.new_state(0)
    for n in range(100):
        reply = Reply(True, "ok", False, "m") if n % 2 else Reply(False, "no")
        state = engine_watch.judge(state, reply, conf, float(n))
    assert len(state["pending"]) == engine_watch.MOST_AN_HOUR and state["unsaid"] == 90
    state = engine_watch.judge(state, Reply(True, "ok", False, "m"), conf, 3700.0)
    assert state["pending"][-1]["status"] == "up" and state["unsaid"] == 0
    assert "(90 changes before it were not told)" in state["pending"][-1]["text"]
    for n in range(100):
        reply = Reply(True, "ok", False, "m") if n % 2 else Reply(False, "no")
        state = engine_watch.judge(state, reply, conf, 4000.0 * n)
    assert len(state["pending"]) == engine_watch.MAX_PENDING


def metrics(tokens: int, running: int = 1) -> str:
    """What /metrics say of an engine with a request that runs."""
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="0"}} 0.5\n'
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
    )


PROPERTIES = """\
#!/bin/sh
# rigbook stand-in for systemctl
echo ActiveState=active
echo InvocationID=a
"""
SILENCE = {"step_s": 120, "prompt_s": 1300, "restart": False}


@pytest.fixture
def own(rig: Rig) -> Rig:
    """A rig that watches its own engine, whose unit is up."""
    engine_file(rig.host, url=rig.endpoint.url)
    rig.host.double("systemctl", PROPERTIES)
    rig.configure(silence=SILENCE, webhook=f"{rig.hook.url}/{SECRET}")
    rig.endpoint.page = lambda: metrics(7, 0)
    return rig


def test_a_look_at_our_own_engine_remembers_what_it_saw(own: Rig) -> None:
    assert own.look() == ""
    silence = own.state()["silence"]
    assert silence["judged"]["invocation"] == "a" and silence["judged"]["since"] is None
    assert silence["judged"]["marks"]["vllm:generation_tokens_total"] == 7


def test_a_silent_engine_is_told_once_with_its_evidence(own: Rig) -> None:
    """An engine with a request that runs and a key that we lack: no probe tells anything."""
    own.reply = (401, {"error": "key"})
    own.endpoint.page = lambda: metrics(7)
    own.look()
    silence = own.state()["silence"]
    silence["judged"]["since"] -= 200
    own.alter(silence=silence)
    assert "rigbook-engine.service is silent: 1 requests run" in own.look()
    own.look()
    (notice,) = own.hook.got
    assert notice["status"] == "wedged" and "tiny on lab, lab1: " in notice["text"]
    assert len(list((own.host.state / "evidence").iterdir())) == 1


def test_an_engine_that_is_busy_is_not_missing(own: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue: the short request waits longer than a look, and tokens flow."""
    for name, value in own.host.environ().items():
        monkeypatch.setenv(name, value)
    tokens = iter(range(100))
    own.endpoint.page = lambda: metrics(next(tokens), 8)
    late = Reply(False, "no answer in time")
    monkeypatch.setattr(answer, "ask_completion", lambda *_: late)
    for _ in range(5):
        after = engine_watch.inspect_endpoint(silence.load_watch())
    assert (after["status"], after["misses"]) == ("up", 0) and own.told() == []
    assert after["detail"] == "busy: no answer in time, and tokens flow"
    own.endpoint.page = lambda: metrics(99, 8)
    for _ in range(4):
        after = engine_watch.inspect_endpoint(silence.load_watch())
    assert after["status"] == "down"


def test_a_systemd_that_does_not_answer_stops_no_watch(own: Rig) -> None:
    own.host.double("systemctl", "#!/bin/sh\n# rigbook stand-in\nexit 1\n")
    assert "whether rigbook-engine.service is silent is not known" in own.look()
    assert own.state()["status"] == "up"


def test_a_state_of_the_version_before_goes_on(rig: Rig) -> None:
    rig.answers(DOWN, DOWN)
    known = rig.state()
    for key in ("silence", "noticed", "unsaid"):
        del known[key]
    rig.state_file.write_text(json.dumps(known))
    assert "is down since" in rig.answers(DOWN)


def test_metrics_for_the_node_exporter(own: Rig) -> None:
    """The names are those of the page, the file is readable by all and never half."""
    path = own.host.root / "rigbook.prom"
    own.configure(silence=SILENCE, textfile=str(path))
    own.look()
    rows = dict(line.split(" ") for line in path.read_text().splitlines() if line[0] != "#")
    labels = '{rig="lab",node="lab1",model="tiny"}'
    assert set(rows) == {f"{name}{labels}" for name in engine_watch.METRICS}
    assert rows[f"rigbook_watch_up{labels}"] == "1"
    assert rows[f"rigbook_engine_silent_seconds{labels}"] == "0"
    assert abs(float(rows[f"rigbook_watch_last_look_timestamp_seconds{labels}"]) - time.time()) < 60
    assert path.stat().st_mode & 0o777 == 0o644 and own.host.leftovers() == []
    own.configure(textfile=str(path))
    own.answers(DOWN, DOWN, DOWN)
    text = path.read_text()
    assert "rigbook_engine" not in text and f"rigbook_watch_up{labels} 0" in text
    assert f"rigbook_watch_misses{labels} 3" in text
    own.configure(textfile=str(own.host.root / "no" / "rigbook.prom"))
    assert "no metrics: " in own.look()


def test_the_page_has_every_metric() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"
    rows = [line.split("`")[1] for line in page.read_text().splitlines() if line[:3] == "| `"]
    assert rows == list(engine_watch.METRICS)


# What the watch tells of the machine: new lines of the kernel, once, and a kept reading.

WATCH = Watch("lab", "lab1", None, 3, 3600.0, None, None)  # type: ignore[arg-type]
XID = {
    "kind": "xid",
    "number": 79,
    "device": "0000:05:00",
    "text": "NVRM: Xid 79",
}


class Endpoint:
    """Stands for what is watched; only its model is asked for."""

    model = "tiny"


def test_new_lines_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = WATCH._replace(endpoint=Endpoint())  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = [{**XID, "unix_s": time.time() - 5}]
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(health, "counter_values", lambda: {"mlx5_0/1 link_downed": 0})
    monkeypatch.setattr(health, "fixed_disks", lambda: ["sda"])
    monkeypatch.setattr(health, "this_boot", lambda: list(rows))
    # what was before the first look of a boot is the doctor's to tell
    assert engine_watch.kernel_notices(watch) == []
    assert json.loads(Path(health.counters_path()).read_text())["boot"] == proc.boot_id()
    rows += [{**XID, "unix_s": time.time() + 1}, {**XID, "number": 43, "unix_s": time.time() + 1}]
    (notice,) = engine_watch.kernel_notices(watch)
    assert (notice["status"], notice["node"], notice["model"]) == ("hardware", "lab1", "tiny")
    assert notice["text"] == f"the kernel of lab1 reports: {XID['text']}"
    rows.clear()
    assert engine_watch.kernel_notices(watch) == []


def test_a_log_that_cannot_be_read_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> list[Any]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(health, "counter_values", dict)
    health.keep_counters()
    monkeypatch.setattr(health, "this_boot", denied)
    assert engine_watch.kernel_notices(WATCH) == []
