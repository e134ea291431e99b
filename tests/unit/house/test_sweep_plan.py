"""A sweep follows from its seed, spreads its kinds, and says what is outside of its table."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.system.sweep.blows import IS, MISSED
from tests.system.sweep.cycle import Row, no_change, table
from tests.system.sweep.plan import DEPLOYS, Cell, cell, cells


def test_the_seed_alone_says_which_how_and_when() -> None:
    first = cells("unit", "unit", 20, 7)
    assert first == cells("unit", "unit", 20, 7) != cells("unit", "unit", 20, 8)
    assert cells("unit", "unit:13", 20, 7) == [first[13]]
    assert cells("weights", "unit:13", 20, 7) == []


def test_each_kind_comes_as_often_and_moments_are_spread() -> None:
    found = cells("serve", "serve", 80, 3)
    assert Counter(one.kind for one in found) == dict.fromkeys(DEPLOYS["serve"], 10)
    parts = sorted(one.part for one in found)
    assert 0 <= parts[0] < 0.1 and 0.9 < parts[-1] < 1


def test_the_number_is_that_of_all_deploys() -> None:
    assert sum(len(cells(name, "", 60, 1)) for name in DEPLOYS) == 60
    found = [len(cells(name, "unit,image", 5, 1)) for name in ("unit", "image", "serve")]
    assert found == [3, 2, 0]


@pytest.mark.parametrize("chosen", ["units", "unit:x", "unit,,image"])
def test_a_deploy_that_is_not_there_is_refused(chosen: str) -> None:
    with pytest.raises(ValueError, match="there are unit, "):
        cells("unit", chosen, 5, 1)


def row(one: Cell, fault: str = "", hit: str = "hit") -> Row:
    """A cell's end."""
    return Row(one, 1.5, 9.0, "a line", hit, "killed", "goes on", 3.0, "COMMITTED", fault)


def test_the_table_names_what_is_outside() -> None:
    one, two = (cell(7, "unit", number) for number in (0, 7))
    assert one.kind == two.kind
    lines = table([row(one), row(two, "left: X OPEN")])
    assert lines[0].endswith("1 were as asked after one more run, 1 outside")
    assert any("2 COMMITTED, 1 FAULT" in line for line in lines)
    assert lines[-1] == "FAULT unit:7: left: X OPEN"


def test_a_cell_that_hit_nothing_is_no_interrupt() -> None:
    one, two = (cell(7, "unit", number) for number in (0, 7))
    lines = table([row(one), row(two, hit=MISSED)])
    assert lines[0].startswith("1 interrupts") and lines[0].endswith("; 1 had nothing to hit")
    assert any("1 COMMITTED" in line for line in lines), lines


# as they were on a host of the lab, whose sessions have no slice of their own
NODE = ("/usr/bin/python3", "-I", "-B", "/usr/local/lib/rigbook/rignode-eb7d4a6918ed.pyz", "apply")
SSH = "/rigbook-lab-8ba83b7e/twintower1/payload/system.slice/ssh.service"
WATCH = "/rigbook-lab-8ba83b7e/lab1/payload/system.slice/rigbook-watch.service"


@pytest.mark.parametrize(
    ("kind", "argv", "cgroup", "found"),
    [
        ("node killed", NODE, SSH, True),
        ("node killed", NODE, "/user.slice/user-0.slice/session-3.scope", True),
        ("node killed", NODE, WATCH, False),
        ("node killed", ("sudo", "-H", "-n", "sh"), SSH, False),
        ("connection killed", ("sshd: rig@notty",), SSH, True),
        ("connection killed", ("sshd: /usr/sbin/sshd -D [listener]",), SSH, False),
        ("dockerd killed", ("/usr/bin/dockerd", "-H", "fd://"), "docker.service", True),
    ],
)
def test_what_is_hit(kind: str, argv: tuple[str, ...], cgroup: str, found: bool) -> None:
    assert IS[kind]([*argv], cgroup) is found


@pytest.mark.parametrize(
    ("said", "nothing"),
    [
        ("Grand total    5   -   -   5", True),
        ("Grand total    5   1   -   4", False),
        ("Grand total    5   -   1   4", False),
        ("no table", False),
    ],
)
def test_no_change_is_pyinfras_own_count(said: str, nothing: bool) -> None:
    assert no_change(said) is nothing
