"""Power cuts while a set of weights is switched, and while that is undone: the former set, the new
one, or a mix that is marked as one, which prelaunch refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from node.weights import beside
from tests.unit.node.crash.cases import Lied, Lost, Run, journal, undone
from tests.unit.node.crash.test_power_cuts import holds
from tests.unit.node.support.host import Host
from tests.unit.node.support.table_lines import Show
from tests.unit.node.support.transfers import content
from tests.unit.node.weights.test_switch_killed import GOOD, NEW, reset, switch

SWITCH = """\
from pathlib import Path
from tests.unit.node.weights.test_switch_killed import switch
switch(Path({folder!r}))
"""


def check_of(folder: Path, wanted: dict[str, bytes]) -> Callable[[bool], str]:
    """The judge of a disk: `wanted` is there once the verb has answered."""

    def check(answered: bool) -> str:
        journal()
        found = content(folder)
        if found not in (GOOD, NEW) and beside.incomplete(str(folder)) != "change-1":
            raise Lied(f"a mix without its mark: {found}")
        if answered and found != wanted:
            raise Lied(f"it answered, but there is {found}")
        for raw in found.values():
            if raw not in (*GOOD.values(), *NEW.values()):
                raise Lost(f"a file is neither old nor new: {raw!r}")
        return undone(GOOD, lambda: content(folder))

    return check


@pytest.mark.parametrize("verb", ["switch", "undo"])
def test_a_set_of_weights(host: Host, show: Show, verb: str) -> None:
    folder = host.root / "weights"

    def before() -> None:
        reset(host, folder)
        if verb == "undo":
            switch(folder)

    run = Run(host, "undo", {}, before, check_of(folder, NEW if verb == "switch" else GOOD))
    if verb == "switch":
        run.script = SWITCH.format(folder=str(folder))
    holds(run, show, f"{verb} of a set of weights")
