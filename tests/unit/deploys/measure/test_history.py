"""Which kept measurement counts, and what a damaged one leads to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.procedures.measure import history
from schema.measure.run import BenchRun, Other
from tests.plans.support.scenario import tiny_plan
from tests.unit.builders.measured import bench

RATES = (79.0, 79.4, 79.8, 79.2, 79.6)


def whole(name: str, **more: object) -> BenchRun:
    """A bench of tiny's balanced profile that the other client took part in."""
    run = bench(name, RATES).model_copy(update={"other": Other(client="rigbook", rates=RATES)})
    return run.model_copy(update=more)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(history.VARIABLE, str(tmp_path))
    return tmp_path / "lab"


def test_the_newest_whole_bench_of_the_profile_is_the_baseline(folder: Path) -> None:
    plan = tiny_plan()
    assert history.last_rates(plan, "balanced") == ()
    first = whole("20261101T080000Z-bench-aaaa")
    other = first.subject.model_copy(update={"profile": "latency"})
    history.save(first)
    history.save(whole("20261102T080000Z-bench-bbbb", complete=False))
    history.save(whole("20261103T080000Z-bench-cccc", subject=other))
    history.save(bench("20261104T080000Z-bench-dddd", RATES))
    (folder / "20261105T080000Z-bench-eeee.json").write_text("{")
    assert history.last_rates(plan, "balanced") == RATES
    assert history.last_rates(plan, "throughput") == ()


def test_a_document_is_read_as_it_was_written(folder: Path) -> None:
    run = whole("20261101T080000Z-bench-aaaa")
    path = history.save(run)
    history.save(run.model_copy(update={"complete": True}))
    assert history.bench("lab", "20261101") == run
    assert [*folder.iterdir()] == [path]


@pytest.mark.parametrize(
    ("text", "said"), [("{", "does not fit"), ('{"kind": "soak"}', "does not fit"), ("\xff", "fit")]
)
def test_a_damaged_document_is_one_line(folder: Path, text: str, said: str) -> None:
    folder.mkdir()
    (folder / "20261105T080000Z-bench-eeee.json").write_text(text)
    with pytest.raises(DeployError, match=said) as raised:
        history.bench("lab", "last")
    assert "\n" not in str(raised.value)


def test_a_bench_of_0_2_0_is_read_without_its_tool_calls(folder: Path) -> None:
    run = whole("20261101T080000Z-bench-aaaa")
    path = history.save(run)
    tools = [{"name": "one-tool", "ok": True, "detail": "as asked"}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "tools": tools}))
    read = history.bench("lab", run.id)
    assert read.points == run.points and "tools" not in json.loads(history.save(read).read_text())
