"""The pages in words: what was seen, what was not, and names that are text."""

from __future__ import annotations

import re

import pytest

from deploys.plans import report
from deploys.plans.report import rig_page, runs_page, told
from tests.unit.builders.pages import HOSTILE, bench, finding, look, runs, soak

FOUND = (finding("fabric-mtu", "spark1", f"MTU below 9000 {HOSTILE}"),
         finding("host-differs", "spark2", "a sysctl"))  # fmt: skip


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that draws is tried in tests/system/page."""
    monkeypatch.setattr(report, "draw", lambda charts: {chart.title: "" for chart in charts})


def text(page: str) -> str:
    """What a reader sees of it, in one line."""
    body = page.partition("<body>")[2]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_first_cause_stands_with_its_command() -> None:
    page = text(rig_page(look((), FOUND)))
    assert "✗ fabric: blocks" in page and "! kernel: warns" in page
    cause = page.partition("First cause")[2]
    assert cause.index("fabric-mtu") < cause.index("pyinfra INVENTORY deploys/serve.py")
    assert "1 more" in cause


def test_a_rig_without_findings_and_measurements_says_so() -> None:
    page = text(rig_page(look((), ())))
    assert "The doctor found nothing." in page
    assert "Nothing is kept of deepseek-v4-flash on this machine." in page


def test_versions_that_differ_are_marked_in_words() -> None:
    page = rig_page(look((), ()))
    assert re.search(r'<tr class="differs"><th scope="row">kernel \(differs\)</th>', page)
    assert '<th scope="row">NVIDIA driver</th>' in page


def test_changes_and_backups_are_told_with_their_state_and_age() -> None:
    page = text(rig_page(look((), ())))
    assert "serve: ROLLED_BACK" in page and page.count("serve: COMMITTED") == 2
    assert "spark1 3 days /opt/vllm/current, vLLM 0.32.0, torch 2.13.0, cuda 13.0" in page
    assert "spark2: no backup" in page


def test_a_node_that_did_not_answer_is_unknown_everywhere() -> None:
    page = text(rig_page(look((), (finding("nodes-reachable", "spark2", "gone"),), "spark2")))
    assert page.count(": unknown") == 10, "all of its layers but the lowest"
    assert "The journal of spark2 could not be read." in page
    assert re.search(r"kernel \(differs\)\s*[\w.-]+ unknown", page)


def test_doubts_stand_above_the_figures() -> None:
    page = text(rig_page(look(runs(), ())))
    measured = page.partition("Measurements The newest")[2]
    assert measured.index("DOUBT: bench of deepseek-v4-flash, latency: it was cut off") < (
        measured.index("Throughput")
    )
    assert "balanced: 60.3" not in page, "an older bench of a profile is in the history alone"


def test_hostile_names_are_text_and_no_page_has_a_script() -> None:
    for page in (rig_page(look(runs(), FOUND)), runs_page(HOSTILE, "now", runs(), [HOSTILE])):
        assert "<script" not in page and "<img" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert not re.search(r'(?:src|href)="(?!rig\.html|runs\.html)', page)


def test_a_run_is_compared_with_the_one_before_of_its_profile() -> None:
    before = [bench(20, "latency", 80.0), bench(19, "balanced", 50.0), bench(18, "balanced", 9.0)]
    found = told(bench(21, "balanced", 60.0), before)
    assert found.against == "1 stream: better, against 20261119T080000Z-bench-0013"
    assert told(bench(21, "balanced", 60.0, complete=False), before).against == ""
    assert told(bench(21, "other", 60.0), before).against == ""


def test_a_soak_is_told_with_its_verdict() -> None:
    found = told(soak(3))
    assert found.lines[-1] == "memory: leak" and "throttled" in found.doubts[0]
    assert not any("throttled" in line for line in found.lines)


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (119, "119 s"), (7199, "120 min"), (86400 * 3, "3 days")]
)
def test_ages_have_whole_units(seconds: float, words: str) -> None:
    assert report.age(seconds) == words
