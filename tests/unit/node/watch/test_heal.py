"""A silent engine on a host: named with evidence, restarted within its budget, then left alone.

The engine is a double that speaks HTTP: its /metrics, and completions that do not come.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from node.core.webhook import NO_ANSWER
from node.engine import config, peer_watchdog
from node.files.host_lock import Lock
from node.rules.completion import Reply
from node.watch import evidence, heal, own_unit
from node.watch.own_unit import OwnUnit
from node.watch.silence import Limits
from tests.unit.node.support.enginefile import UNIT, engine_file
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.servers import Server, serving

SYSTEMCTL = """\
#!/bin/sh
# rigbook stand-in for systemctl: the unit's properties are a file, the rest is logged
here=$(dirname "$0")
case "$*" in
*show*) cat "$here/properties";;
*) echo "$*" >> "$here/log"; [ ! -e "$here/fails" ];;
esac
"""
LATE = Reply(False, NO_ANSWER)
OK = Reply(True, "tiny answered in 0.1 s", model="tiny")
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
        self.memory = heal.fresh()
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

    def look(self, reply: Reply = LATE, restart: bool = True) -> heal.Found:
        """One look; what stood still before it has done so for ten minutes less a second."""
        since = self.memory["judged"]["since"]
        if since is not None:
            self.memory["judged"]["since"] = since - 599
        target = OwnUnit(config.load())
        target.ask = lambda _: reply  # type: ignore[method-assign]
        found = heal.look(target, Limits(500, 500), restart, self.memory, 60, self.keep)
        self.memory = found.memory
        return found

    def silent(self, restart: bool = True) -> heal.Found:
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
        monkeypatch.setattr(own_unit, "compiles", lambda: False)
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
    monkeypatch.setattr(heal, "FIRST_PART_S", 0.2)

    def ask(_: float) -> Reply:
        engine.tokens += 1  # the last one
        time.sleep(0.6)
        return LATE

    target = OwnUnit(config.load())
    target.ask = ask  # type: ignore[method-assign]
    began = time.monotonic()
    found = heal.look(target, Limits(500, 500), True, engine.memory, 60, engine.keep)
    assert found.works is False
    assert 0.2 <= found.memory["judged"]["since"] - began < 0.6


def test_a_restart_that_fails_counts_and_its_evidence_is_kept_once(engine: Engine) -> None:
    """As the real program goes on after a look: from what it kept."""
    (engine.host.bin / "fails").touch()
    for _ in range(8):
        engine.silent()
        if engine.saved:
            engine.memory = engine.saved[-1]
    assert len(engine.memory["restarts"]) == heal.MOST and engine.bundles() == 1
    assert len(engine.restarts()) <= 2 * heal.MOST
    assert [status for status, _ in engine.told][-1] == "stood-down"


def test_a_load_is_not_judged_and_an_answer_ends_it(engine: Engine) -> None:
    engine.silent()
    engine.unit("b", "activating")
    for _ in range(5):
        assert engine.look().works is None
    engine.unit("b")
    assert engine.look(OK).works is True
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
    engine.look(OK)
    assert engine.memory["stood_down_unix_s"] is None
    engine.silent()
    assert len(engine.restarts()) == 6 and engine.told[-1][0] == "stood-down"
    engine.memory["restarts"] = [then - heal.WINDOW_S for then in engine.memory["restarts"]]
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
    monkeypatch.setattr(peer_watchdog, "hindrance", lambda *_: None)
    with Lock("apply"):
        engine.silent()
    assert engine.restarts() == [] and engine.memory["restarts"] == []
    engine.look()
    assert engine.restarts() == RESTART and len(engine.memory["restarts"]) == 1


def test_a_peer_that_does_not_answer_on_the_fabric_is_waited_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_watchdog, "hindrance", lambda *_: "not restarted: no answer from x")
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
    assert own_unit.idle(text, devices) is idle


def test_a_process_of_nvcc_is_a_compiler_at_work(host: Host) -> None:
    assert not own_unit.compiles()
    path = host.double("cicc", "#!/bin/sh\nsleep 5; true\n")
    with subprocess.Popen([str(path)]) as child:
        deadline = time.monotonic() + 5
        while not own_unit.compiles():
            assert time.monotonic() < deadline
        child.kill()
