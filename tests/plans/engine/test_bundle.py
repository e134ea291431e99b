"""doctor with bundle: the same look, each engine's log, and one archive beside the findings."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, data
from tests.plans.support.table import Table, each_row, quiet

FOLDER = tempfile.TemporaryDirectory(prefix="rigbook-bundle-")
FILE = Path(FOLDER.name) / "rig.tar.gz"
TABLE: Table = {
    "bundle": (
        Scenario(("deploys/doctor.py", "-y", *data(f"bundle={FILE}")), answers=Reply),
        quiet(f"wrote {FILE}, secrets masked"),
    ),
}
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_the_archive_has_both_nodes(ran: Runs) -> None:
    assert ran["bundle"].status == 0
    with tarfile.open(FILE) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"snapshots/{HEAD}.json", f"logs/{WORKER}.log", "findings.json"} <= names
