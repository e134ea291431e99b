"""When an engine is silent: what /metrics of several versions say, and the verdict of looks."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from node import health
from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.files import Lock
from node.engine import answer, config, evidence, peer, silence, watch
from node.engine.answer import NO_ANSWER, Scrape
from node.engine.evidence import OwnUnit
from node.engine.silence import Limits, Look, Watch
from node.rules.engine import Reply
from tests.unit.node.support.host import (
    UNIT,
    Host,
    apply_request,
    change,
    engine_file,
    file_step,
    unsigned,
)
from tests.unit.node.support.transfers import Server, completion, serving
from tests.unit.node.support.watched import Rig

CASES = yaml.safe_load((Path(__file__).parent / "metrics.yaml").read_text())
LIMITS = Limits(120, 1300)
OK = Reply(True, "tiny answered in 0.3 s", model="tiny")
LATE = Reply(False, NO_ANSWER)
KEY = Reply(False, "HTTP 401: the engine lives and wants a key", True, wants_key=True)


@pytest.mark.parametrize("case", CASES, ids=[case["version"] for case in CASES])
def test_what_a_version_says_is_read(case: dict[str, Any]) -> None:
    read = answer.parse_metrics(case["text"])
    if "running" not in case:
        assert read is None
        return
    assert read is not None
    found = {"running": read.running, "waiting": read.waiting, "marks": len(read.marks),
             "by_step": read.by_step}  # fmt: skip
    assert found == {key: case[key] for key in found}
    assert "_created" not in "".join(read.marks) and "_bucket" not in "".join(read.marks)


def test_metrics_that_do_not_come_have_a_reason() -> None:
    with serving(lambda body: (200, {})) as server:
        assert answer.scrape_metrics(server.url) == "HTTP 404"
        server.page = lambda: "<html>"
        assert answer.scrape_metrics(server.url) == "/metrics is not vLLM's"
    assert answer.scrape_metrics(server.url) == "Connection refused"


def at(tokens: float, running: float = 2, waiting: float = 0, kv: float | None = 0.5) -> Scrape:
    """A scrape of a version that tells the cache's use, or (kv None) of one that does not."""
    marks = {"vllm:generation_tokens_total": tokens}
    if kv is not None:
        marks["vllm:kv_cache_usage_perc"] = kv
    return Scrape(running, waiting, marks, kv is not None)


def looks(*rows: Any, every: float = 60.0, **same: Any) -> tuple[Json, str | None, list[Any]]:
    """Looks one after the other, each (before, after, reply): state, reason, what `works` said."""
    state, reason, works = silence.fresh_silence("a"), None, []
    for n, (before, after, reply) in enumerate(rows):
        began = 1000 + n * every
        look = Look("a", began, began + 60, before, after, reply, **same)
        state, did, reason = silence.judge(state, look, LIMITS)
        works.append(did)
    return state, reason, works


STILL = (at(7), at(7), LATE)
MUTE = (NO_ANSWER, NO_ANSWER, LATE)
SILENT = {
    "requests run and no token is made": [STILL] * 2,
    "an idle engine that was asked and does not answer": [(at(7, 0), at(7, 0), LATE)] * 2,
    # jundot's report of 2026-07 (vllm-metal#479): nothing runs, six wait for capacity, for an hour
    "six wait and none is let in": [(at(7, 0, 6), at(7, 0, 6), LATE)] * 2,
    "clients that hold a key of their own, and no token": [(at(7), at(7), KEY)] * 2,
    "the API process is stopped": [MUTE] * 2,
    "it is stopped in the middle of a look": [(at(7), NO_ANSWER, LATE), MUTE],
    "it worked before": [(at(5), at(7), OK), STILL, STILL],
    "without the cache's use, after a whole prompt": [(at(7, kv=None), at(7, kv=None), LATE)] * 22,
}


@pytest.mark.parametrize("rows", SILENT.values(), ids=SILENT)
def test_silence_is_named_once_its_time_is_over(rows: list[Any]) -> None:
    state, reason, works = looks(*rows)
    assert reason is not None and works[-1] is False, state
    assert looks(*rows[:-1])[1] is None
    assert "limit" in reason


ALIVE = {
    "a full queue whose tokens flow, and a short request that waits": [
        (at(n, 8, 40), at(n + 9, 8, 40), LATE) for n in range(0, 600, 10)
    ],
    "tokens flow between the looks alone": [(at(n), at(n), LATE) for n in range(9)],
    # a prompt of 100,000 tokens counts once it is done; its blocks are taken part by part
    "one long prefill": [(at(7, kv=n / 50), at(7, kv=n / 50), LATE) for n in range(30)],
    "one long prefill, of a version that tells nothing of it": [
        (at(7, kv=None), at(7, kv=None), LATE)
    ]
    * 20,
    "nothing runs and it answers": [(at(7, 0), at(7, 0), OK)] * 30,
    "it answers with frozen counters": [STILL, (at(7), at(7), OK), STILL],
    "nothing runs and it wants a key": [(at(7, 0), at(7, 0), KEY)] * 30,
    "counters that began anew": [STILL, (at(0), at(0), LATE)],
    "metrics that nobody may read": [("HTTP 404", "HTTP 404", LATE)] * 30,
    "no listener": [("Connection refused", "Connection refused", Reply(False, "refused"))] * 30,
    "metrics late, an answer in time": [(NO_ANSWER, NO_ANSWER, OK)] * 30,
    "an error in place of an answer": [(at(7, 0), at(7, 0), Reply(False, "HTTP 500"))] * 30,
}


@pytest.mark.parametrize("rows", ALIVE.values(), ids=ALIVE)
def test_what_works_or_is_not_known_is_never_silent(rows: list[Any]) -> None:
    for n in range(1, len(rows) + 1):
        assert looks(*rows[:n])[1] is None, n


def test_what_is_not_known_is_not_said_to_work() -> None:
    assert looks(("HTTP 404", "HTTP 404", LATE))[2] == [None]
    assert looks((at(7, 0), at(7, 0), KEY))[2] == [None]
    assert looks((at(7), at(8), LATE))[2] == [True]


def test_one_look_is_not_enough_and_a_restart_begins_anew() -> None:
    look = Look("a", 1000, 1500, *STILL)
    state, _, reason = silence.judge(silence.fresh_silence("a"), look, LIMITS)
    assert reason is None
    again = look._replace(began=1500, ended=1560)
    assert silence.judge(state, again, LIMITS).reason
    assert silence.judge(state, again._replace(invocation="b"), LIMITS).reason is None
    # nobody looked for an hour: nothing is known of that hour
    late = look._replace(began=5200, ended=5300)
    assert silence.judge(state, late, LIMITS).reason is None


def test_a_compiler_at_work_explains_more_and_an_idle_gpu_less() -> None:
    assert looks(*[STILL] * 10, compiles=True)[1] is None
    assert looks(*[STILL] * 16, compiles=True)[1]
    old = (at(7, kv=None), at(7, kv=None), LATE)
    assert looks(*[old] * 3)[1] is None
    assert "the GPU is idle" in str(looks(*[old] * 3, gpu_idle=True)[1])
    assert looks(*[old] * 3, gpu_idle=True, compiles=True)[1] is None


def test_the_next_look_ends_when_the_limit_does() -> None:
    state, _, _ = looks(STILL)
    assert silence.answer_s(state, LIMITS, 1060, 60, 15) == 60
    assert silence.answer_s(state, LIMITS, 1090, 60, 15) == 30
    assert silence.answer_s(state, LIMITS, 1119, 60, 15) == 15
    assert silence.answer_s(silence.fresh_silence(), LIMITS, 1119, 60, 15) == 60


# A silent engine on a host: named with evidence, restarted within its budget, then left alone.
#
# The engine is a double that speaks HTTP: its /metrics, and completions that do not come.

SYSTEMCTL = """\
#!/bin/sh
# rigbook stand-in for systemctl: the unit's properties are a file, the rest is logged
here=$(dirname "$0")
case "$*" in
*show*) cat "$here/properties";;
*) echo "$*" >> "$here/log"; [ ! -e "$here/fails" ];;
esac
"""
HEAL_OK = Reply(True, "tiny answered in 0.1 s", model="tiny")
RESTART = [f"--no-ask-password reset-failed {UNIT}", f"--no-ask-password restart --no-block {UNIT}"]


class Engine:
    """An engine's double, and the looks at it; each look lasts as long as `silent_s` says."""

    def __init__(self, host: Host, server: Server) -> None:
        self.host, self.tokens, self.running = host, 100, 1
        server.page = lambda: (
            f'vllm:num_requests_running{{engine="0",model_name="tiny"}} {self.running}\n'
            f'vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 3\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} 0.5\n'
            f'vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {self.tokens}\n'
        )
        host.double("systemctl", SYSTEMCTL)
        self.unit("a")
        engine_file(host, url=server.url, peers=[], master=None, fabric=None)
        self.memory = silence.fresh_memory()
        self.told: list[tuple[str, str]] = []
        self.saved: list[dict[str, Any]] = []

    def unit(self, invocation: str, active: str = "active") -> None:
        (self.host.bin / "properties").write_text(
            f"ActiveState={active}\nInvocationID={invocation}\n"
        )

    def keep(self, memory: dict[str, Any], said: tuple[str, str] | None) -> None:
        self.saved.append(memory)
        if said:
            self.told.append(said)

    def look(self, reply: Reply = LATE, restart: bool = True) -> silence.Found:
        """One look; what stood still before it has done so for ten minutes less a second."""
        since = self.memory["judged"]["since"]
        if since is not None:
            self.memory["judged"]["since"] = since - 599
        target = OwnUnit(config.load_engine())
        target.ask = lambda _: reply  # type: ignore[method-assign]
        found = silence.look_and_heal(target, Limits(500, 500), restart, self.memory, 60, self.keep)
        self.memory = found.memory
        return found

    def silent(self, restart: bool = True) -> silence.Found:
        """The two looks that it takes."""
        self.look(restart=restart)
        return self.look(restart=restart)

    def restarts(self) -> list[str]:
        log = self.host.bin / "log"
        return log.read_text().splitlines() if log.exists() else []

    def bundles(self) -> int:
        folder = self.host.state / "evidence"
        return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.fixture
def engine(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with serving(lambda body: (200, {})) as server:
        made = Engine(host, server)
        for name, value in host.environ().items():
            monkeypatch.setenv(name, value)
        # what this host's tools say is test_evidence.py's matter
        monkeypatch.setattr(evidence, "parts", lambda _: {"a.txt": evidence.Part(lambda: "seen")})
        monkeypatch.setattr(evidence, "compiles", lambda: False)
        yield made


def test_it_is_named_once_with_its_evidence_and_restarted(engine: Engine) -> None:
    assert engine.look().works is False and engine.told == [] and engine.restarts() == []
    engine.look()
    ((status, text),) = engine.told
    assert status == "wedged" and "1 requests run, 3 wait, and no token was made" in text
    assert "restarting it, 1 of 3 in 6 h" in text and "evidence in " in text
    assert engine.restarts() == RESTART and engine.bundles() == 1
    # announced before it was made
    assert len(engine.saved[-1]["restarts"]) == 1
    bundle = next((engine.host.state / "evidence").iterdir())
    assert "no token was made" in json.loads((bundle / "summary.json").read_text())["reason"]


def test_an_engine_that_stops_in_a_look_is_silent_from_its_middle_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "FIRST_PART_S", 0.2)

    def ask(_: float) -> Reply:
        engine.tokens += 1  # the last one
        time.sleep(0.6)
        return LATE

    target = OwnUnit(config.load_engine())
    target.ask = ask  # type: ignore[method-assign]
    began = time.monotonic()
    found = silence.look_and_heal(target, Limits(500, 500), True, engine.memory, 60, engine.keep)
    assert found.works is False
    assert 0.2 <= found.memory["judged"]["since"] - began < 0.6


def test_a_restart_that_fails_counts_and_its_evidence_is_kept_once(engine: Engine) -> None:
    """As the real program goes on after a look: from what it kept."""
    (engine.host.bin / "fails").touch()
    for _ in range(8):
        engine.silent()
        if engine.saved:
            engine.memory = engine.saved[-1]
    assert len(engine.memory["restarts"]) == silence.MOST and engine.bundles() == 1
    assert len(engine.restarts()) <= 2 * silence.MOST
    assert [status for status, _ in engine.told][-1] == "stood-down"


def test_a_load_is_not_judged_and_an_answer_ends_it(engine: Engine) -> None:
    engine.silent()
    engine.unit("b", "activating")
    for _ in range(5):
        assert engine.look().works is None
    engine.unit("b")
    assert engine.look(HEAL_OK).works is True
    assert engine.memory["reason"] is None and len(engine.restarts()) == 2


def test_the_fourth_time_it_stands_down_until_it_answers(engine: Engine) -> None:
    for start in "abc":
        engine.unit(start)
        engine.silent()
    assert len(engine.restarts()) == 6 and engine.bundles() == 3
    engine.unit("d")
    for _ in range(4):
        engine.look()
    assert len(engine.restarts()) == 6 and engine.bundles() == 4
    assert [status for status, _ in engine.told] == ["wedged"] * 3 + ["stood-down"]
    assert "3 restarts in 6 h did not help" in engine.told[-1][1]
    assert engine.memory["stood_down_unix_s"] is not None
    # a person restarts it, and it answers; it may be restarted again once the six hours are over
    engine.unit("e")
    engine.look(HEAL_OK)
    assert engine.memory["stood_down_unix_s"] is None
    engine.silent()
    assert len(engine.restarts()) == 6 and engine.told[-1][0] == "stood-down"
    engine.memory["restarts"] = [then - silence.WINDOW_S for then in engine.memory["restarts"]]
    engine.look()
    assert len(engine.restarts()) == 8 and engine.told[-1][0] == "wedged"


def test_a_full_queue_whose_tokens_flow_is_never_restarted(engine: Engine) -> None:
    engine.look()
    for _ in range(60):
        engine.tokens += 1
        assert engine.look().works is True
    assert engine.restarts() == [] and engine.told == [] and engine.bundles() == 0


def test_without_the_option_it_is_named_and_left(engine: Engine) -> None:
    for _ in range(4):
        engine.look(restart=False)
    assert engine.restarts() == [] and engine.bundles() == 1 and len(engine.told) == 1
    assert "nothing restarts it" in engine.told[0][1]


def test_an_operator_at_work_is_not_disturbed(engine: Engine) -> None:
    """Told once; the restart comes when the change is closed, without a second bundle."""
    engine.host.call("apply", {"change": change(), "steps": []})
    engine.silent()
    engine.look()
    assert engine.restarts() == [] and len(engine.told) == 1
    assert "not restarted: change change-1 is open" in engine.told[0][1]
    assert engine.memory["restarts"] == []
    engine.host.call("close", {"change": "change-1", "status": "COMMITTED"})
    engine.look()
    assert engine.restarts() == RESTART and engine.bundles() == 1


def test_a_lock_that_is_taken_in_between_costs_no_restart(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "hindrance", lambda *_: None)
    with Lock("apply"):
        engine.silent()
    assert engine.restarts() == [] and engine.memory["restarts"] == []
    engine.look()
    assert engine.restarts() == RESTART and len(engine.memory["restarts"]) == 1


def test_a_peer_that_does_not_answer_on_the_fabric_is_waited_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "hindrance", lambda *_: "not restarted: no answer from x")
    engine.silent()
    assert engine.restarts() == [] and "no answer from x" in engine.told[0][1]


def test_a_disk_that_is_full_does_not_keep_the_restart_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device", "/var/lib/rigbook/evidence")

    monkeypatch.setattr(evidence, "keep", full)
    engine.silent()
    assert engine.restarts() == RESTART and "no evidence: " in engine.told[0][1]


# nvidia-smi --query-gpu=index,uuid,utilization.gpu,power.draw,power.limit: an H200 and a 5060 Ti
# with an engine that waits and one that computes; a GB10 reports no limit (eugr#260), and older
# drivers on it no power at all
GPUS = {
    "idle": ("0, GPU-a, 0, 118.42, 700.00\n", None, True),
    "a kernel that spins": ("0, GPU-a, 100, 121.10, 700.00\n", None, False),
    "no kernel in this sample, and much power": ("0, GPU-a, 0, 430.00, 700.00\n", None, False),
    "one of two computes": ("0, GPU-a, 0, 9.1, 180.00\n1, GPU-b, 37, 88.0, 180.00\n", None, False),
    "the other one is not ours": ("0, GPU-a, 0, 9.1, 180.0\n1, GPU-b, 37, 88, 180\n", ("0",), True),
    "a GB10": ("0, GPU-a, 0, 11.31, [N/A]\n", None, True),
    "a GB10 that computes": ("0, GPU-a, 96, 58.90, [N/A]\n", None, False),
    "no power": ("0, GPU-a, 0, [N/A], [N/A]\n", None, None),
    "a fault": ("0, GPU-a, [GPU requires reset], 9, 180\n", None, None),
    "none of ours": ("0, GPU-a, 0, 9.1, 180.00\n", ("7",), None),
    "another form": ("0, GPU-a, 0\n", None, None),
}


@pytest.mark.parametrize(("text", "devices", "idle"), GPUS.values(), ids=GPUS)
def test_whether_the_gpus_are_idle(
    text: str, devices: tuple[str, ...] | None, idle: bool | None
) -> None:
    assert evidence.gpu_idle(text, devices) is idle


def test_a_process_of_nvcc_is_a_compiler_at_work(host: Host) -> None:
    assert not evidence.compiles()
    path = host.double("cicc", "#!/bin/sh\nsleep 5; true\n")
    with subprocess.Popen([str(path)]) as child:
        deadline = time.monotonic() + 5
        while not evidence.compiles():
            assert time.monotonic() < deadline
        child.kill()


# What the watch tells of a host that acted, or went down, with nobody there: once.

FORMER = "11111111-2222-3333-4444-555555555555"
ENDED = {"boot_id": FORMER.replace("-", ""), "last_unix_s": 1_790_000_000, "asked_for": False}


@pytest.fixture
def rig(host: Host) -> Iterator[Rig]:
    with (
        serving(lambda body: (200, completion())) as endpoint,
        serving(lambda body: (200, {})) as hook,
    ):
        yield Rig(host, endpoint, hook)


def taken(host: Host, deploy: str, status: str) -> None:
    """A change of this host, as its keeper or a run left it."""
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    path = host.state / "journal" / "change-1.json"
    change = unsigned(path)
    closed = None if status == "OPEN" else time.time()
    change.update(status=status, reason="nobody renewed the lease of 120 s", closed_unix_s=closed,
                  taken={"operator": "keeper@spark1", "deploy": deploy, "unix_s": 1.0})  # fmt: skip
    path.write_text(json.dumps(change))


@pytest.mark.parametrize(
    ("deploy", "status", "told"),
    [
        ("lease", "ROLLED_BACK", ["lease"]),
        ("lease", "INCONSISTENT", ["lease"]),
        ("lease", "OPEN", []),
        ("serve", "ROLLED_BACK", []),
    ],
)
def test_the_end_of_a_lease_is_told_once(
    rig: Rig, deploy: str, status: str, told: list[str]
) -> None:
    rig.look()
    taken(rig.host, deploy, status)
    rig.look()
    rig.look()
    assert rig.told() == told
    assert not told or f"is {status}: nobody renewed" in rig.hook.got[0]["text"]


def test_what_ended_before_the_watch_is_no_news(rig: Rig) -> None:
    taken(rig.host, "lease", "ROLLED_BACK")
    rig.look()
    assert rig.told() == []


class Endpoint:
    """Stands for what is watched; only its model is asked for."""

    model = "tiny"


WATCH = Watch("lab", "lab1", Endpoint(), 3, 3600.0, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kept", "ended", "deploy", "told"),
    [
        (FORMER, ENDED, "serve", ["rebooted"]),
        (FORMER, {**ENDED, "asked_for": True}, "serve", []),
        (FORMER, ENDED, "reboot", []),
        ("", ENDED, "serve", []),
        ("this one", ENDED, "serve", []),
    ],
)
def test_a_reboot_that_nobody_asked_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, ended: dict[str, Any], deploy: str,
    told: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    boot = proc.boot_id() if kept == "this one" else kept
    monkeypatch.setattr(watch.files, "load_state", lambda *_: {**health.NO_COUNTERS, "boot": boot})
    change = {"deploy": deploy, "boot_id": FORMER, "closed_unix_s": 1.0}
    monkeypatch.setattr(watch.journal, "read_all", lambda: ([change], []))
    monkeypatch.setattr(watch.host, "read_boots", lambda: [ended])
    rows = watch.look_at_away(WATCH, time.time())
    assert [row["status"] for row in rows] == told
    assert not told or "2026-09-21" in rows[0]["text"]


def test_a_journal_that_cannot_be_read_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise CannotRead("journalctl: not found")

    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(
        watch.files, "load_state", lambda *_: {**health.NO_COUNTERS, "boot": FORMER}
    )
    monkeypatch.setattr(watch.host, "read_boots", fails)
    assert watch.look_at_away(WATCH, 0.0) == []
    assert "is not known: journalctl: not found" in capsys.readouterr().out


def test_a_host_that_never_stops_is_told_of_ten_times_an_hour() -> None:
    sent, row = 0, {"status": "hardware"}
    noticed: list[float] = []
    for minute in range(60):
        told, noticed = watch.limited([row], noticed, 60.0 * minute)
        sent += len(told)
    assert sent == watch.MOST_AN_HOUR
    assert watch.limited([row, row], noticed, 3601.0)[0] == [row]
