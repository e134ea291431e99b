"""What a host is: one remote command, one typed document.

`pyinfra inventory/lab.py fact facts.snapshot.Snapshot` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

from facts.rignode.fact import NodeFact
from schema.observed.snapshot import NodeSnapshot

# With `deep` the weights are hashed: 149 GB at 100 MB/s are 25 minutes.
DEEP_TIMEOUT_S = 3600


class Snapshot(NodeFact[NodeSnapshot]):
    """The host's NodeSnapshot. `request` is a SnapshotRequest as JSON text; none: the basics.

    A hung driver or docker is reported by its section; the limit bounds the whole command.
    """

    verb = "snapshot"
    kind = NodeSnapshot

    def seconds(self, request: Mapping[str, object]) -> int:
        """More for a request that is `deep`."""
        return DEEP_TIMEOUT_S if request.get("deep") else self.timeout_s
