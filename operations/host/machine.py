"""A machine's own settings: Wake-on-LAN, sleep, attestations. The steps are node's, journalled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from operations.change.apply import Steps
from operations.engine.engine import file_steps
from schema.desired.plan import Document
from schema.observed.files import FileState
from schema.observed.hardware import Nic
from schema.render.wake_on_lan_files import Persistence

_SLEEP_DIR = "/etc/systemd/system"


def folder_steps(documents: Sequence[Document], files: Mapping[str, FileState], mode: str) -> Steps:
    """The steps that make the documents' folders where they are absent."""
    folders = dict.fromkeys(document.path.rpartition("/")[0] for document in documents)
    return [
        {"op": "directory", "path": path, "mode": mode, "owner": "root", "group": "root"}
        for path in folders
        if path in files and files[path].kind == "absent"
    ]


def wol_steps(
    nic: Nic, how: Persistence, files: Mapping[str, FileState], enabled: Collection[str]
) -> Steps:
    """The steps that arm a card at every boot and now; none where it is.

    `enabled` are the units that are enabled already.
    """
    written = file_steps(how.documents, files)
    steps = [*folder_steps(how.documents, files, "0755"), *written] if written else []
    if how.unit is not None and (written or how.unit not in enabled):
        steps.append(_unit(how.unit, enabled=True))
    if not getattr(nic.wol, "armed", False):
        steps.append({"op": "wol", "nic": nic.name, "letters": "g"})
    return steps


def sleep_steps(targets: Mapping[str, str]) -> Steps:
    """The steps that mask what would put the machine to sleep; none where all is masked."""
    awake = sorted(name for name, state in targets.items() if state != "masked")
    links: Steps = [
        {"op": "link", "path": f"{_SLEEP_DIR}/{name}", "target": "/dev/null"} for name in awake
    ]
    return [*links, _unit(awake[0])] if links else []


def _unit(name: str, enabled: bool | None = None) -> dict[str, object]:
    return {"op": "unit", "unit": name, "enabled": enabled, "active": None, "daemon_reload": True}
