"""bench, compare, profiles and soak with the real vLLM over two nodes, in this order."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from statistics import median

import pytest
import yaml

from deploys.plans.measure import VARIABLE
from facts.endpoint import ask
from lab.incidents import head_was_started
from schema.measure import BenchRun, SoakRun
from tests.system.engine.steps import head, start, wait_until
from tests.system.rehearsal import ROOT, Done, Lab

SHORT = ("--data", "streams=1,4", "--data", "tokens=64", "--data", "contexts=256")


def newest(kept: Path) -> BenchRun:
    """The newest bench."""
    path = max(kept.glob("*-bench-*.json"))
    return BenchRun.model_validate_json(path.read_text())


def told(done: Done, word: str) -> str:
    """The first line with a word in it."""
    line = next((line.strip() for line in done.text.splitlines() if word in line), "")
    assert line, done.text
    print(f"REPLAY {line}")
    return line


def test_the_engine_that_serves_is_measured(serving: Lab, kept: Path) -> None:
    before = serving.starts()
    done = serving.pyinfra("bench", *SHORT)
    assert done.rc == 0, done.text
    run = newest(kept)
    assert run.complete and [point.streams for point in run.points] == [1, 4]
    assert all(len(point.rates) == 5 and not point.errors for point in run.points)
    assert median(run.points[1].rates) > median(run.points[0].rates)
    assert run.prefill[0].cold_s and run.client.startswith("vllm bench serve 0.32")
    assert all(machine.samples for machine in run.machines)
    told(done, "1 stream: ")
    told(done, "4 streams: ")
    assert told(done, "by rigbook, from the operator's machine").endswith("they agree")
    assert run.id in serving.ssh("test1", "sudo ls /var/lib/rigbook/measurements")
    assert serving.starts() == before, "nothing is restarted"


def test_the_same_again_is_within_noise(serving: Lab, kept: Path) -> None:
    first = newest(kept).id
    assert serving.pyinfra("bench", *SHORT).rc == 0
    done = serving.pyinfra("bench", "--data", f"compare={first},last")
    assert done.rc == 0, done.text
    assert "within noise" in told(done, "4 streams: ")


def single(folder: Path) -> tuple[str, ...]:
    """A recipe like tiny with a profile that makes one answer at a time."""
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    one = {"description": "one stream", "vllm_serve": {"max_num_seqs": 1}}
    recipe["profiles"]["single"] = one
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "single.yaml").write_text(yaml.safe_dump(recipe))
    return ("--data", "recipe=single", "--data", f"recipes_dir={folder}")


def test_a_slower_profile_is_worse_and_the_former_one_is_back(
    serving: Lab, kept: Path, tmp_path: Path
) -> None:
    first, before = newest(kept), serving.snapshots()
    done = serving.pyinfra("bench", *SHORT, *single(tmp_path), "--data", "profiles=single")
    assert done.rc == 0, done.text
    told(done, "from its start")
    slow = newest(kept)
    assert (slow.subject.profile, first.subject.profile) == ("single", "balanced")
    assert slow.start is not None and slow.start.first_token_s is not None
    assert "ROLLED_BACK; tiny serves again" in done.text
    for name in serving.hosts:
        change = serving.changes(name)[0]
        assert (change["deploy"], change["status"]) == ("bench", "ROLLED_BACK")
    assert _files(serving.snapshots()) == _files(before)
    again = serving.pyinfra("serve")
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-")
    both = serving.pyinfra("bench", "--data", f"compare={first.id},{slow.id}")
    assert both.rc == 0 and "worse" in told(both, "4 streams: ")
    assert "max_num_seqs 4 -> 1" in told(both, "the command line differs")


def _files(snapshots: dict[str, dict[str, object]]) -> dict[str, object]:
    return {name: snapshot["files"] for name, snapshot in snapshots.items()}


def test_ctrl_c_in_a_profile_leads_back(serving: Lab, kept: Path) -> None:
    known = {str(change["id"]) for change in serving.changes("test1")}
    process = start("bench", *SHORT, "--data", "profiles=throughput")
    wait_until("bench starts the head", 180, lambda: head_was_started(serving, "test1", known))
    os.kill(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 1, text
    assert "interrupted by Ctrl-C" in text and "ROLLED_BACK; tiny serves again" in text, text
    assert ask(head(serving)).ok


def test_a_soak_of_five_minutes(serving: Lab, kept: Path) -> None:
    done = serving.pyinfra("soak", "--data", "seconds=300", "--data", "streams=4")
    run = SoakRun.model_validate_json(max(kept.glob("*-soak-*.json")).read_text())
    assert run.complete and run.seconds >= 300 and run.completed > 20 and not run.failed
    assert [len(machine.samples) > 40 for machine in run.machines] == [True, True]
    told(done, "s at 4 streams")
    told(done, "memory: ")
    # the hosts share this machine's memory: what else runs here may move it
    assert done.rc == 0 or "memory leaks on" in done.text, done.text


def test_a_killed_soak_keeps_what_it_had(serving: Lab, kept: Path) -> None:
    known = {*kept.glob("*-soak-*.json")}
    process = start("soak", "--data", "seconds=600")
    wait_until("soak writes", 90, lambda: {*kept.glob("*-soak-*.json")} > known)
    wait_until("an answer is in it", 90, lambda: _soak(kept).completed > 0)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert not _soak(kept).complete and all(m.samples for m in _soak(kept).machines)


def _soak(kept: Path) -> SoakRun:
    return SoakRun.model_validate_json(max(kept.glob("*-soak-*.json")).read_text())


def test_the_pages_show_the_rig_and_what_was_measured(
    serving: Lab, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = serving.pyinfra("report")
    if importlib.util.find_spec("vl_convert") is None:
        assert done.rc == 1 and "-r requirements/report.txt" in told(done, "the charts need")
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        kept = tmp_path / kept.name
        done = serving.pyinfra("report")
    assert done.rc == 0, done.text
    told(done, "wrote ")
    page = (kept / "rig.html").read_text()
    for name in serving.hosts:
        assert f"<h3>{name}</h3>" in page
    assert "endpoint: blocks" not in page and page.count(" endpoint</li>") == 1, "the head's alone"
    assert "bench: ROLLED_BACK" in page and "serve: COMMITTED" in page
    assert (kept / "runs.html").is_file()
