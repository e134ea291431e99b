"""Version, changelog and RELEASE.md say the same, and a missed target is named as one."""

from __future__ import annotations

import re

from tests.unit.house.test_docs import ROOT

RELEASE = (ROOT / "RELEASE.md").read_text()
HEAD = re.compile(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", re.M)


def test_version_changelog_and_release_are_one() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    newest = HEAD.search((ROOT / "CHANGELOG.md").read_text())
    assert newest and newest[1] == version
    assert HEAD.findall(RELEASE) == [(newest[1], newest[2])]


def test_missed_targets_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    missed = re.findall(r"^\| ([^|]+) \|.*\| NOT MET \|$", page, re.M)
    told = RELEASE.partition("that are missed:\n\n")[2].partition("\n\n")[0]
    named = [re.sub(r"^- | \(.*\)$", "", line) for line in told.splitlines()]
    assert named == missed and missed
