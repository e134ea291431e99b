"""docs/benchmarks.md: a part that is measured again replaces its own section, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench import backup, moving, rollback, weights
from tests.bench.page import Part, machine, write
from tests.bench.report import Row, table
from tests.infra.plugin import ROOT


def test_a_part_replaces_its_own_section_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write(page, Part("One", "first\n", []))
    write(page, Part("Two", "| a |\n|---|\n", []))
    write(page, Part("One", "again\n\n- a note\n", []))
    assert page.read_text() == (
        "# Benchmarks\n\n## One\n\nagain\n\n- a note\n\n## Two\n\n| a |\n|---|\n"
    )


def test_targets_of_backup_and_rollback_are_judged_by_medians() -> None:
    slow = backup.Figures([10.0], [11.6], [10.0], [11.4], [5.0], [190_000_000])
    judged = {row.what: row.met for row in backup.rows(slow) if row.met is not None}
    assert list(judged.values()) == [False, True, True], judged
    quick = rollback.Figures([4.0, 9.0, 4.2], [60.0], [13.0, 12.0], [10.0, 10.0])
    assert [row.met for row in rollback.rows(quick) if row.met is not None] == [True, True]
    late = rollback.Figures([5.4], [60.0], [13.5], [10.0])
    part = Part("Rollback", table(rollback.rows(late)), rollback.rows(late))
    assert len(part.missed) == 2 and part.text.count("NOT MET") == 2


def test_a_move_is_judged_by_both_ways_of_the_same_round() -> None:
    figures = moving.Figures(
        pipe=[90.0, 100.0], ours=[50.0, 50.0], wire_s=[30.0], node_s=[40.0], save=[30.0],
        wire=[14.0], load=[50.0], layer_pipe=[50.0], layer=[4.0], layer_node=[1.0],
        layer_mb=[1.0, 6.0], nothing=[1.5], commands=1, memory=10**8,
    )  # fmt: skip
    part = Part("Image", table(moving.rows(figures)), moving.rows(figures))
    assert [row.met for row in part.rows if row.met is not None] == [
        False, False, False, False, True, True,
    ]  # fmt: skip
    assert "1.90 times faster (1.80 to 2.00)" in part.text and "12.50 times faster" in part.text


def test_weights_are_judged_by_the_lower_of_disk_and_wire() -> None:
    figures = weights.Figures(raw=[4e9, 4e8], disk=[4e8, 9e8], unknown=[3.6e8, 3.6e8],
                              known=[3.9e8, 3.9e8], cached=10**9)  # fmt: skip
    rows = weights.rows(figures)
    assert [row.met for row in rows if row.met is not None] == [True, False, False]
    assert "98 % (98 to 98)" in table(rows) and "90 % (90 to 90)" in table(rows)


def test_the_machine_is_named_and_an_unknown_part_is_refused() -> None:
    assert " cores" in machine() and "load average" in machine()
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "nonsense"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "there are: rig, growth, backup" in done.stderr
    assert Row("x", "y").met is None
