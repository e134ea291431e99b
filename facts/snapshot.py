"""What a host is: one remote command, one typed document.

`pyinfra inventory/lab.py fact facts.snapshot.Snapshot` prints it. The program travels with the
command and writes nothing on the host (facts/rignode/pack.py).
"""

from __future__ import annotations

import json
import shlex

from pydantic import ValidationError
from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.rignode import pack
from schema.observed.snapshot import NodeSnapshot

# A hung driver or docker is reported by its section; this bounds the whole command.
SNAPSHOT_TIMEOUT_S = 60
# With `deep` the weights are hashed: 149 GB at 100 MB/s are 25 minutes.
DEEP_TIMEOUT_S = 3600


def bounded(command: str, seconds: int) -> str:
    """The sh command, ended on the HOST after `seconds` (a local timeout leaves it running)."""
    return f"timeout -k 5 {seconds} sh -c {shlex.quote(command)}"


class Snapshot(FactBase[NodeSnapshot]):
    """The host's NodeSnapshot. `request` is a SnapshotRequest as JSON text; empty: the basics."""

    def command(self, request: str = "{}") -> str:
        """The one command that runs `node snapshot` on the host, read-only."""
        wanted = json.loads(request)
        seconds = DEEP_TIMEOUT_S if wanted.get("deep") else SNAPSHOT_TIMEOUT_S
        return bounded(pack.inline_command("snapshot", wanted), seconds)

    def process(self, output: list[str]) -> NodeSnapshot:
        """The typed snapshot; FactProcessError says in one line what the host answered instead."""
        return parse_snapshot(output)


def parse_snapshot(output: list[str]) -> NodeSnapshot:
    """A NodeSnapshot from the lines of `node snapshot`; FactProcessError when they hold none."""
    try:
        document = json.loads(output[-1])
    except (IndexError, ValueError):
        document = None
    if not isinstance(document, dict):
        said = " ".join(output)[:300]
        answered = f"no snapshot but: {said!r}" if said else f"nothing in {SNAPSHOT_TIMEOUT_S} s"
        raise FactProcessError(f"the host answered {answered}")
    if document.get("ok") is False:
        raise FactProcessError(f"node snapshot failed: {document.get('error')}")
    document.pop("ok", None)
    try:
        return NodeSnapshot.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FactProcessError(
            f"the host's snapshot does not fit at {where}: {first['msg']}"
        ) from None
