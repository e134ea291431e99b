"""Steps as node takes them, for those that many runbooks make alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from operations.change.apply import Steps
from schema.observed.files import FileState


def unit_step(
    unit: str, active: str | None = None, enabled: bool | None = None, reload: bool = True
) -> dict[str, object]:
    """A unit brought to a state: `active` is start, restart or stop; None leaves it as it is.

    `reload`: systemd reads its units anew before, where something changed.
    """
    return {
        "op": "unit",
        "unit": unit,
        "enabled": enabled,
        "active": active,
        "daemon_reload": reload,
    }


def folder_steps(
    paths: Iterable[str], files: Mapping[str, FileState], mode: str = "0755", owner: str = "root"
) -> Steps:
    """The steps that make those of the folders that were looked at and are absent."""
    return [
        {"op": "directory", "path": path, "mode": mode, "owner": owner, "group": owner}
        for path in dict.fromkeys(paths)
        if path in files and files[path].kind == "absent"
    ]
