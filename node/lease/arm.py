"""lease: a change is opened with a lease, and a keeper watches over it from then on.

The keeper's unit is there as long as the change is open: the keeper takes it away itself. It is
enabled, so that it survives a reboot.
"""

from __future__ import annotations

import contextlib
import os

from node.change import journal, transaction
from node.core import systemctl, validate, version
from node.core.errors import Json, NodeError
from node.files import atomic, state_dir
from node.files.host_lock import Lock
from node.lease import settings
from node.lease.settings import Lease

UNIT = "rigbook-lease.service"
LOCK_S = 5.0
_TEXT = """\
# Made by rigbook while a change is open; its keeper takes it away at the end.
[Unit]
Description=rigbook: goes back when nobody renews change {change}
After=network.target
# A keeper that fails is the only one who would bring this host back.
StartLimitIntervalSec=0

[Service]
# Started means: it listens for the peers. One that cannot fails the arming.
Type=notify
TimeoutStartSec=20
SyslogIdentifier=rigbook-lease
ExecStart={program} lease keep
Restart=on-failure
RestartSec=2
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""


def unit_folder() -> str:
    """Gives the folder of the unit; below RIGBOOK_STATE where that is set (tests)."""
    root = os.environ.get("RIGBOOK_STATE")
    return os.path.join(root, "units") if root else "/etc/systemd/system"


def _paths() -> tuple[str, str]:
    """Gives the unit's file, and the link that has it started at boot."""
    folder = unit_folder()
    wants = os.path.join(folder, "multi-user.target.wants")
    return os.path.join(folder, UNIT), os.path.join(wants, UNIT)


def arm(request: Json) -> Json:
    """Open the change, or go on in it, and have its keeper started; an OPEN change with a lease of
    before gets the new one. Raises NodeError.
    """
    body = validate.keys(request, "request", ("change", "lease"), ("change", "lease"))
    header = journal.parse_change(body["change"])
    if not isinstance(body["lease"], dict):
        raise validate.bad("lease is not an object")
    wanted = {**body["lease"], "change": header["id"]}
    lease = settings.parse(wanted)
    program = version.own_path()
    if program is None:
        raise NodeError("the program is not installed: no unit could start it", "not_installed")
    with transaction.opened(header, "lease") as steps:
        steps.change["lease"] = {"seconds": lease.seconds}
        steps.announce()
        settings.save(wanted)
        unit, link = _paths()
        os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
        text = _TEXT.format(change=lease.change, program=program)
        _write(unit, text)
        if not os.path.islink(link):
            os.symlink(unit, link)
        state_dir.sync_folder(os.path.dirname(link))
        systemctl.systemctl("daemon-reload")
        # one that keeps a former change takes up this one
        try:
            systemctl.systemctl("restart", UNIT)
        except NodeError as error:
            _take_away()
            del steps.change["lease"]
            steps.forget([])
            begun = f"change {lease.change} has none now" if steps.rows else "nothing was begun"
            raise NodeError(
                f"no lease: its keeper does not start: {error}; {begun}",
                "lease_failed",
                f"journalctl -u {UNIT} -n 20; ss -lunp 'sport = :{lease.port}'",
            ) from None
    return {**steps.answer(), "changed": True}


def _write(path: str, text: str) -> None:
    with atomic.Folder(path) as folder:
        owner = atomic.Owner(0o644, os.geteuid(), os.getegid())
        atomic.replace(folder, text.encode("utf-8"), owner, atomic.temp_name(folder.name))


def _take_away() -> None:
    """Take the unit, its link and the lease away, and end a keeper that still tries."""
    for path in reversed(_paths()):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    settings.remove()
    with contextlib.suppress(NodeError):
        systemctl.systemctl("stop", "--no-block", UNIT)
    systemctl.systemctl("daemon-reload")


def remove(lease: Lease) -> None:
    """Take the unit and the lease away, unless another one is there by now.

    Raises NodeError, OSError.
    """
    with Lock("lease", LOCK_S):
        now = settings.load()
        if now is not None and now != lease:
            return
        for path in reversed(_paths()):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        settings.remove()
        systemctl.systemctl("daemon-reload")
