"""The engine of some nodes at this moment: ports, processes, unit, container, launch script."""

from __future__ import annotations

from collections.abc import Collection

from pyinfra.api import State

from facts.observe import Looks
from facts.rignode.fact import ask_some
from facts.snapshot import Snapshot
from schema.desired.plan import UNIT
from schema.observed.snapshot import SnapshotRequest
from schema.render.engine_files import SCRIPT_PATH

# No weights, no images, no venvs: it is asked around each completion that is to prove something.
REQUEST = SnapshotRequest(files=(SCRIPT_PATH,), units=(UNIT,)).model_dump_json()


def look_at_engine(state: State, nodes: Collection[str]) -> Looks:
    """Each node's snapshot by name, asked at the same time; an `Unreadable` says why a node could
    not be asked.
    """
    return ask_some(state, Snapshot(), dict.fromkeys(nodes, REQUEST))
