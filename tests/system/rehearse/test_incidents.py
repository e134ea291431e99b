"""Incidents on one twin, in a row: each is named by the doctor, mended as its row says, judged."""

from __future__ import annotations

import os

import pytest

from facts.endpoint.completion import ask
from lab.core.settings import LabError
from lab.rehearsal import incident
from lab.rehearsal.incidents.table import ROWS, Rig
from tests.system.rehearsal import Lab

WANTED = os.environ.get("RIGBOOK_INCIDENTS", "").split(",")
ON_A_PAIR = [
    row.code
    for row in ROWS
    if row.on & {"pair", "container"} and (WANTED == [""] or row.code in WANTED)
]


def test_the_twin_is_the_rig_by_its_names(lab: Lab, twin: Rig) -> None:
    assert twin.names == ("spark1", "spark2")
    for name in twin.names:
        assert lab.ssh(name, "hostname") == name
        assert lab.ssh(name, "id -un milo") == "milo"
        assert lab.ssh(name, "sudo ls /home/milo/models/DeepSeek-V4-Flash/config.json")
    assert ask(incident.endpoint(twin), 30).ok
    found = incident.doctor(twin)
    assert [row for row in found if row["severity"] == "block"] == []


@pytest.mark.parametrize("code", ON_A_PAIR)
def test_it_is_named_mended_and_judged(lab: Lab, twin: Rig, code: str) -> None:
    row = incident.row_of(twin, code)
    incident.deal(lab.settings, code)
    with pytest.raises(LabError, match=f"{code} is not mended yet"):
        incident.deal(lab.settings, code)
    found = {str(one["code"]) for one in incident.doctor(twin)}
    assert found & set(row.codes), found
    assert incident.check(lab.settings, code) == 1, "it is judged mended before anybody mended it"
    for line in incident.mend(twin, row):
        print(f"TABLE {code}: {line}")
    assert incident.check(lab.settings, code) == 0
