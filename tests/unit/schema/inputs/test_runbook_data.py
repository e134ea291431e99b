"""A type for each runbook: its keys are those of its page, its deploy file is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schema.core.errors import SpecError
from schema.core.parse import known_keys
from schema.desired.kubernetes import ClusterData
from schema.inputs.check import host_data
from schema.inputs.host_data import HostData
from schema.inputs.key_help import key_lines
from schema.inputs.runbook_data import BackupData, UpgradeData, WatchData
from schema.inputs.runbooks import RUNBOOKS, kind_of, rigs_of, runbooks, runbooks_of, taken
from tests.unit.builders.spark_rig import ROOT, host

PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))
OF_A_RUNBOOK = re.compile(r"deploys/(\w+)\.py([^`\n]*)")


def keys_of(runbook: str) -> set[str]:
    """What the runbook takes, on a Kubernetes rig as well."""
    return {key for kind in RUNBOOKS[runbook] for key in taken(kind)}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_each_key_that_a_page_names_is_one_of_its_runbook(page: Path) -> None:
    """In a command: of the runbook in that command; in a table: of the page's own; in a sentence:
    of one that the page names."""
    text = page.read_text()
    for name, words in OF_A_RUNBOOK.findall(text):
        assert set(re.findall(r"--data (\w+)=", words)) <= keys_of(name), (name, words)
    for rows in re.findall(r"^\| key \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
        first = [row.split("|")[1] for row in rows.splitlines()]
        assert set(re.findall(r"`(\w+)`", "".join(first))) <= keys_of(page.stem)
    named = {page.stem, *(name for name, _ in OF_A_RUNBOOK.findall(text))}
    assert set(re.findall(r"--data (\w+)=", text)) <= set().union(*map(keys_of, named))


def test_every_page_has_its_types() -> None:
    assert [page.stem for page in PAGES] == list(RUNBOOKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_each_key_of_a_runbook_stands_on_its_page(page: Path) -> None:
    text = page.read_text()
    own = {
        key for kind in RUNBOOKS[page.stem] for key in {*taken(kind)} - {*known_keys(rigs_of(kind))}
    }
    assert {key for key in own if not re.search(rf"--data {key}=|`{key}[`=]", text)} == set()


UNITS = "seconds|bytes|MiB|looks|starts|backups|tokens|rounds|answers"


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_help_has_each_key_on_a_line_of_its_own(runbook: str) -> None:
    """What it is for, its type and its default; a number has a unit, unless it is a name."""
    lines = [line for line in key_lines(runbook) if line.startswith("  ")]
    keys = [line.split(":")[0].strip() for line in lines]
    assert sorted(keys) == sorted(key for kind in RUNBOOKS[runbook] for key in taken(kind))
    for line in lines:
        assert re.match(r"  \w+: \S.* \(\S.*; (default: .+|required)\)$", line)
        assert "default: (" not in line, "that is Python: nobody can type it"
        if "(whole number" in line and not re.match(r"  (rank|port|device):", line):
            assert re.search(rf"\d ({UNITS});", line)


def test_one_type_for_several_runbooks_and_for_somebodys_own_deploy() -> None:
    both = kind_of(("upgrade", "watch"), HostData)
    assert issubclass(both, UpgradeData) and issubclass(both, WatchData)
    for rigs in (HostData, ClusterData):
        every = set().union(*map(taken, runbooks(rigs).values()))
        assert set(taken(kind_of(("mine",), rigs))) == every
    assert "waive" in taken(kind_of(("verify", "serve"), HostData))
    assert "waive" not in taken(kind_of(("verify", "wake"), HostData))
    assert kind_of(("stop",), HostData) is runbooks(HostData)["stop"]
    assert runbooks_of("tree", HostData) == ["backup"]
    assert runbooks_of("limit", ClusterData) == ["gpu_limit"]
    assert runbooks_of("limit", HostData) == []


def test_a_value_for_another_runbook_is_checked_where_it_describes_the_host() -> None:
    """It may stand in group_data with any runbook, and is wrong with any."""
    fine = host(1, misses=2, keep=9)
    assert host_data("spark1", fine, {}, BackupData).keep == 9
    for wrong in ({"misses": "x"}, {"webhook": "https://h/x", "webhook_file": "/x"}):
        with pytest.raises(SpecError, match=r"misses|webhook"):
            host_data("spark1", host(1, **wrong), {}, BackupData)
