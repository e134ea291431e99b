"""Which copies of a node's backups are seen in the rig, and in which order."""

from __future__ import annotations

import pytest

from deploys.procedures.transfer.gone import in_rig
from schema.observed.backup import Copies, NotedCopy, OtherRow

ID = "20260101T000000Z-venv-0a0a"


def noted(is_here: bool = True) -> NotedCopy:
    """A copy that the node noted."""
    return NotedCopy(backup=ID, place="/mnt/x", unix_s=1.0, is_here=is_here, tree="/t", bytes=5)


def kept(host: str = "spark-a", problem: str | None = None) -> OtherRow:
    """A copy that another node keeps."""
    return OtherRow(host=host, backup=ID, place="/kept", tree="/t", bytes=7, problem=problem)


def rig(own: tuple[NotedCopy, ...], others: tuple[OtherRow, ...]) -> dict[str, Copies]:
    """Two nodes whose names differ from what the hosts call themselves."""
    return {
        "a": Copies(host="spark-a", noted=own, others=()),
        "b": Copies(host="spark-b", noted=(), others=others),
    }


MINE, THEIRS = ("/mnt/x", "", ""), ("/kept", "b", "spark-a")
TABLE = {
    "none": (rig((), ()), []),
    "on a disk there": (rig((noted(),), ()), [MINE]),
    "on a disk that is not mounted": (rig((noted(is_here=False),), ()), []),
    "with another node": (rig((), (kept(),)), [THEIRS]),
    "on both": (rig((noted(),), (kept(),)), [MINE, THEIRS]),
    "of another host": (rig((), (kept(host="spark-b"),)), []),
    "damaged": (rig((), (kept(problem="x"),)), []),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_nearest_copy_comes_first(name: str) -> None:
    known, wanted = TABLE[name]
    assert [(one.place, one.giver, one.owner) for one in in_rig(known, "a")] == wanted
