"""claim and beat: whose an open change is, and that its run lives (docs/adr/0022).

A run writes into a change with its own token. Another run that takes the change up puts its token
there, and what the first one writes later is refused.
"""

from __future__ import annotations

import os
import time

from node.change import journal, undo
from node.core import validate
from node.core.errors import Json
from node.files import ballast
from node.files.host_lock import Lock


def claim(request: Json, around: undo.Around) -> Json:
    """Make a change this run's, when it still belongs to the run `former`; gives `claimed`, and
    else whose it is.

    With `take_back` what it did is undone, but for the units in `keep`, which stay stopped: the
    change stays OPEN, and knows what they were. Raises NodeError as an undo does.
    """
    names = ("change", "run", "former", "operator", "deploy", "take_back", "keep", "overwrite")
    body = validate.keys(request, "request", names, names[:5])
    identifier = validate.change_id(body["change"])
    token = journal.token(body["run"], "run")
    operator = validate.text(body["operator"], "operator", 200)
    deploy = validate.text(body["deploy"], "deploy", 80)
    keep = [validate.unit(row, f"keep[{n}]")
            for n, row in enumerate(validate.array(body.get("keep", []), "keep"))]  # fmt: skip
    rows = validate.array(body.get("overwrite") or [], "overwrite")
    overwrite = [validate.path(row, f"overwrite[{n}]") for n, row in enumerate(rows)]
    goes_back = validate.boolean(body.get("take_back", False), "take_back")
    room = ballast.Room() if goes_back else ballast.Room(1)
    with Lock(f"claim {identifier} by {operator}"), room:
        journal.sweep()
        change = journal.get(identifier)
        now = change.get("run")
        # a rollback claims a COMMITTED change; one to resume was proven since the caller looked
        ended = ("ROLLED_BACK", "COMMITTED") if goes_back else ("ROLLED_BACK",)
        if change["status"] in ended or now not in (token, body["former"]):
            return {**_told(change), "claimed": False}
        steps: list[Json] = []
        if now != token:
            change["run"] = token
            change["taken"] = {"operator": operator, "deploy": deploy, "unix_s": time.time()}
            journal.save(change)
        if goes_back:
            steps = undo.take_back(change, keep, overwrite, around)
        return {**_told(change), "claimed": True, "steps": steps, "state": change}


def _told(change: Json) -> Json:
    """Gives whose a change is, and the seconds since that run's last sign of life."""
    by = change.get("taken") or change
    return {
        "change": change["id"],
        "status": change["status"],
        "run": change.get("run"),
        "operator": by["operator"],
        "deploy": by["deploy"],
        "quiet_s": abs(time.time() - journal.last_sign(change)),
    }


def beat(request: Json) -> Json:
    """Note that a change's run lives, or with `over` that it has ended; gives `mine`: whether the
    change is still that run's and not closed. Takes no lock: a step may hold it for minutes.
    """
    body = validate.keys(request, "request", ("change", "run", "over"), ("change", "run"))
    change = journal.get(validate.change_id(body["change"]))
    over = validate.boolean(body.get("over", False), "over")
    mine = change.get("run") == journal.token(body["run"], "run")
    if mine:
        # a close meanwhile puts a new file there, whose time says nothing any more
        os.utime(journal.path_of(change["id"]), (0, 0) if over else None)
    return {**_told(change), "mine": mine and change["status"] != "ROLLED_BACK"}
