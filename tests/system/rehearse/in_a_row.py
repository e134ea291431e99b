"""An incident on a twin: dealt, named by the doctor, mended as its row says, judged, timed."""

from __future__ import annotations

import os
import time

import pytest

from lab import rehearsal
from lab.core import LabError
from lab.incidents import ROWS, Incident, Rig
from tests.system.rehearsal import Lab
from tests.system.rehearse.transcript import Line, note

# A unit that is restarted by hand stops first, and starts then.
SHOWS_S = 180
WANTED = os.environ.get("RIGBOOK_INCIDENTS", "").split(",")


def codes_of(*kinds: str) -> list[str]:
    """The incidents that a twin of one of these kinds holds, those that the environment names."""
    return [
        row.code for row in ROWS if row.on & {*kinds} and (WANTED == [""] or row.code in WANTED)
    ]


def named_of(rig: Rig, row: Incident) -> list[str]:
    """The doctor's findings that are the incident's; it is asked until the rig has come down."""
    began = time.monotonic()
    while True:
        found = {str(one["code"]) for one in rehearsal.doctor(rig)}
        named = sorted(found & set(row.codes))
        if named:
            return named
        assert time.monotonic() - began < SHOWS_S, found


def dealt_and_mended(lab: Lab, rig: Rig, code: str) -> None:
    """Deals it; the doctor names it, its row mends it, the judge agrees only then."""
    row = rehearsal.row_of(rig, code)
    began = time.time()
    rehearsal.deal_incident(lab.settings, code)
    broken = time.time()
    with pytest.raises(LabError, match=f"{code} is not mended yet"):
        rehearsal.deal_incident(lab.settings, code)
    named = named_of(rig, row)
    seen = time.time()
    assert rehearsal.check_incident(lab.settings, code) == 1, (
        "it is judged mended before anybody mended it"
    )
    judged = time.time()
    by = rehearsal.mend(rig, row)
    for line in by:
        print(f"TABLE {code}: {line}")
    mended = time.time()
    assert rehearsal.check_incident(lab.settings, code) == 0
    note(
        Line(
            began=began,
            rig=", ".join(rig.names),
            code=code,
            named=named,
            mends=[line.removesuffix(": exit status 0") for line in by],
            seconds={
                "break": broken - began,
                "doctor": seen - broken,
                "mend": mended - judged,
                "judge": time.time() - mended,
            },
        )
    )
