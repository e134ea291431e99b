"""A machine's own settings: Wake-on-LAN, sleep, attestations. The steps are node's, journalled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from operations.change.apply import Steps
from operations.change.steps import folder_steps, unit_step
from operations.engine.engine import file_steps
from schema.desired.plan import Document
from schema.observed.files import FileState
from schema.observed.hardware import Nic
from schema.render.wake_on_lan_files import WolPersistence

_SLEEP_DIR = "/etc/systemd/system"


def folders_of(documents: Sequence[Document]) -> list[str]:
    """The documents' folders."""
    return [document.path.rpartition("/")[0] for document in documents]


def wol_steps(
    nic: Nic, how: WolPersistence, files: Mapping[str, FileState], enabled: Collection[str]
) -> Steps:
    """The steps that arm a card at every boot and now; none where it is.

    `enabled` are the units that are enabled already.
    """
    written = file_steps(how.documents, files)
    steps = [*folder_steps(folders_of(how.documents), files), *written] if written else []
    if how.unit is not None and (written or how.unit not in enabled):
        steps.append(unit_step(how.unit, enabled=True))
    if not getattr(nic.wol, "armed", False):
        steps.append({"op": "wol", "nic": nic.name, "letters": "g"})
    return steps


def sleep_steps(targets: Mapping[str, str]) -> Steps:
    """The steps that mask what would put the machine to sleep; none where all is masked."""
    awake = sorted(name for name, state in targets.items() if state != "masked")
    links: Steps = [
        {"op": "link", "path": f"{_SLEEP_DIR}/{name}", "target": "/dev/null"} for name in awake
    ]
    return [*links, unit_step(awake[0])] if links else []
