"""Which kept measurement counts, and what a damaged one leads to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.plans import measure
from schema.measure import BenchRun, Other
from tests.plans.support.scenario import tiny_plan
from tests.unit.builders.pages import measured_bench

RATES = (79.0, 79.4, 79.8, 79.2, 79.6)


def whole(name: str, **more: object) -> BenchRun:
    """A bench of tiny's balanced profile that the other client took part in."""
    run = measured_bench(name, RATES).model_copy(
        update={"other": Other(client="rigbook", rates=RATES)}
    )
    return run.model_copy(update=more)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(measure.VARIABLE, str(tmp_path))
    return tmp_path / "lab"


def test_the_newest_whole_bench_of_the_profile_is_the_baseline(folder: Path) -> None:
    plan = tiny_plan()
    assert measure.last_rates(plan, "balanced") == ()
    first = whole("20261101T080000Z-bench-aaaa")
    other = first.subject.model_copy(update={"profile": "latency"})
    measure.save_run(first)
    measure.save_run(whole("20261102T080000Z-bench-bbbb", complete=False))
    measure.save_run(whole("20261103T080000Z-bench-cccc", subject=other))
    measure.save_run(measured_bench("20261104T080000Z-bench-dddd", RATES))
    (folder / "20261105T080000Z-bench-eeee.json").write_text("{")
    assert measure.last_rates(plan, "balanced") == RATES
    assert measure.last_rates(plan, "throughput") == ()


def test_a_document_is_read_as_it_was_written(folder: Path) -> None:
    run = whole("20261101T080000Z-bench-aaaa")
    path = measure.save_run(run)
    measure.save_run(run.model_copy(update={"complete": True}))
    assert measure.last_bench("lab", "20261101") == run
    assert [*folder.iterdir()] == [path]


@pytest.mark.parametrize(
    ("text", "said"), [("{", "does not fit"), ('{"kind": "soak"}', "does not fit"), ("\xff", "fit")]
)
def test_a_damaged_document_is_one_line(folder: Path, text: str, said: str) -> None:
    folder.mkdir()
    (folder / "20261105T080000Z-bench-eeee.json").write_text(text)
    with pytest.raises(DeployError, match=said) as raised:
        measure.last_bench("lab", "last")
    assert "\n" not in str(raised.value)


def test_a_bench_of_0_2_0_is_read_without_its_tool_calls(folder: Path) -> None:
    run = whole("20261101T080000Z-bench-aaaa")
    path = measure.save_run(run)
    tools = [{"name": "one-tool", "ok": True, "detail": "as asked"}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "tools": tools}))
    read = measure.last_bench("lab", run.id)
    assert read.points == run.points and "tools" not in json.loads(
        measure.save_run(read).read_text()
    )
