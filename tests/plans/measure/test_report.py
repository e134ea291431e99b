"""report writes two pages of one look, changes nothing, and is no error on a rig that is ill."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Table, each_row, quiet

REPORT = ("deploys/report.py", "-y")
MADE = tempfile.TemporaryDirectory(prefix="rigbook-report-")


def folder(name: str, **files: str) -> dict[str, str]:
    """The variable that names a folder of measurements with these files."""
    path = Path(MADE.name, name, "lab")
    path.mkdir(parents=True, exist_ok=True)
    for stem, text in files.items():
        (path / f"{stem}.json").write_text(text)
    return {"RIGBOOK_MEASUREMENTS": str(path.parent)}


def page(name: str, which: str = "rig") -> str:
    """What was written."""
    return Path(MADE.name, name, "lab", f"{which}.html").read_text()


TABLE: Table = {
    "healthy": (
        Scenario(REPORT, answers=Reply, env=folder("healthy")),
        quiet("lab/rig.html", "lab/runs.html"),
    ),
    "ill": (
        Scenario(
            REPORT,
            scenario.broken(scenario.image_missing, (HEAD, "network.links.0.mtu", 1500)),
            env=folder("ill"),
        ),
        quiet("lab/rig.html"),
    ),
    "lost": (
        Scenario(REPORT, faults={f"{WORKER}:lost": "snapshot"}, answers=Reply, env=folder("lost")),
        quiet("lab/rig.html"),
    ),
    "bad file": (
        Scenario(REPORT, answers=Reply, env=folder("bad", x='{"kind": "tea"}')),
        quiet("left out x.json: the document"),
    ),
    "dry": (
        Scenario(("deploys/report.py", "--dry"), answers=Reply, env=folder("dry")),
        quiet("would write ", never=("wrote ",)),
    ),
}
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_the_pages_tell_what_was_seen(ran: Runs) -> None:
    assert ran["healthy"].status == 0
    assert "The doctor found nothing." in page("healthy")
    assert "fabric: blocks" in page("ill") and "fabric-mtu" in page("ill")
    assert f"The journal of {WORKER} could not be read." in page("lost")
    assert "x.json: the document" in page("bad", "runs")


def test_only_its_owner_reads_them(ran: Runs) -> None:
    """They hold command lines, names and log lines of hosts."""
    assert ran["healthy"].status == 0
    pages = Path(MADE.name, "healthy", "lab").glob("*.html")
    assert {oct(path.stat().st_mode) for path in pages} == {"0o100600"}


def test_a_dry_run_writes_nothing(ran: Runs) -> None:
    assert ran["dry"].status == 0
    assert [*Path(MADE.name, "dry", "lab").iterdir()] == []
