"""venv replace: another version installed into the venv itself, as the seed did it.

A change of its own, unlike an installation beside: a verified backup of exactly what lies there is
named in it, and undo brings that backup back.
"""

from __future__ import annotations

import os
import re
import time

from node.backup import compare, store
from node.change import journal, kinds, transaction
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run_as_owner import Owner
from node.core.step_kind import Steps
from node.core.step_state import FAILED
from node.files import atomic
from node.venv import install as installing
from node.venv import pip_plan
from node.venv import versions as place
from node.venv.in_place_step import InPlaceKind


def _parse_request(request: Json) -> Json:
    """Gives the request with every value checked."""
    allowed = ("change", "venv", "package", "version", "pip_args", "backup", "timeout_s")
    needed = ("change", "venv", "package", "version", "backup")
    body = validate.keys(request, "request", allowed, needed)
    limit = body.get("timeout_s", installing.DEFAULT_TIMEOUT_S)
    return {
        "change": journal.parse_change(body["change"]),
        "venv": validate.path(body["venv"], "venv"),
        "package": place.package(body["package"]),
        "version": place.version_text(body["version"]),
        "pip_args": pip_plan.parse_pip_args(body.get("pip_args", [])),
        "backup": store.checked_id(body["backup"]),
        "timeout_s": validate.number(limit, "timeout_s", 1, 7200),
    }


def replace(request: Json) -> Json:
    """Have the venv's own pip install the version into it; the change stays OPEN for the caller.

    Refused before anything is touched: a backup that is not verified, not of this folder, or not
    of what lies there now. An error of pip's leaves the change OPEN: undo restores the backup.
    """
    wanted = _parse_request(request)
    path, real = wanted["venv"], os.path.realpath(wanted["venv"])
    if not os.path.isdir(real):
        raise NodeError(f"{path} is not there, or no folder", "no_venv", "name the venv's folder")
    began = time.time()
    with atomic.Folder(real), installing.InstallLock(), store.Held(shared=True), \
            transaction.opened(wanted["change"], "venv replace") as steps:  # fmt: skip
        if place.installed(real, wanted["package"]) == (wanted["version"],):
            return installing.answer(real, False, real, began)
        _refuse(wanted["backup"], real)
        before = installing.installed_names(real)
        kind = InPlaceKind("install")
        step = _announced(kind, steps, wanted, real)
        try:
            kind.check_revertible(step)  # the way back has room
            kind.announce(step, steps)
            deadline = time.monotonic() + wanted["timeout_s"]
            installing.run_as(Owner(real), installing.pip(real, wanted), deadline)
            installing.verify_version(real, wanted["package"], wanted["version"])
            installing.flush(real)
        except (NodeError, OSError) as error:
            # what pip began is undone by whoever undoes the change
            if step in steps.rows:
                steps.finish(step, FAILED, error=kinds.reason(error))
                if isinstance(error, NodeError):
                    error.remedy = "rignode undo"
            raise steps.take_back(error) from error
        steps.finish(step)
        gone = sorted(set(before) - set(installing.installed_names(real)))
        return {**installing.answer(real, True, real, began), "left_behind": gone[:50]}


def _announced(kind: InPlaceKind, steps: Steps, wanted: Json, real: str) -> Json:
    """Gives the step, not yet written."""
    name = re.sub(r"[^0-9A-Za-z._-]", "_", os.path.basename(real))[:60]
    work = f"{os.path.dirname(real)}/.rigbook-{name}-{steps.change['id']}-back"
    what = f"{wanted['package']} {wanted['version']}"
    return kind.announced(real, work, wanted["backup"], what)


def _refuse(backup: str, real: str) -> None:
    """Raise NodeError unless the backup is a verified one of exactly what lies there."""
    row = store.inspect(backup)
    if row.manifest is None:
        raise store.damaged(backup, row.problem)
    why = ""
    if not row.verified or row.problem:
        why = row.problem or "it was never read back"
    elif row.manifest["real"] != real or row.manifest["roots"] != ["."]:
        why = f"it is not of all of {real}"
    else:
        other = compare.first_difference(backup, row.manifest, real, bytecode=False)
        why = f"{real} is not as it any more: {other}" if other else ""
    if why:
        raise NodeError(
            f"backup {backup} is no way back: {why}; nothing was changed",
            "backup_required",
            "back up and verify, then run again",
        )
