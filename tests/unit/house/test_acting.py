"""docs/reference/acting.md lists every unit that rigbook writes and that acts with nobody there."""

from __future__ import annotations

import re

from docs.site.stage import ROOT
from node.lease import arm

UNITS = ROOT / "templates" / "etc" / "systemd" / "system"
# a timer or a path unit starts these: the page has the one that starts them
STARTED = {"rigbook-pair.service", "rigbook-watch.service", "rigbook-library.service",
           "rigbook-limit.service"}  # fmt: skip


def test_every_unit_is_on_the_page_with_a_way_to_end_it() -> None:
    templates = {re.sub(r"(\.venv)?\.j2$", "", path.name) for path in UNITS.glob("rigbook-*")}
    # the lease's unit is written by the node itself
    written = templates | {arm.UNIT}
    page = (ROOT / "docs" / "reference" / "acting.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `rigbook-")]
    listed = {name for row in rows for name in re.findall(r"`(rigbook-\S+)`", row.split("|")[1])}
    assert listed == written - STARTED
    for row in rows:
        console = row.split("|")[6]
        for name in re.findall(r"`(rigbook-\S+)`", row.split("|")[1]):
            assert "sudo systemctl" in console and name in console, row
