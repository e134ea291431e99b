"""former: what runs a vLLM by other means than rigbook, and what would start it again; read-only.

schema/observed/former.py is the document's type.
"""

from __future__ import annotations

from typing import Any

from node.core import validate
from node.core.errors import Json
from node.former import containers, engines, pods, supervisors


def look(request: Any) -> Json:
    """Gives engines, containers, supervisors, and `unread`: what could not be looked at and why.

    `brief`: without the files that were put into containers by hand. Raises NodeError for a bad
    request only.
    """
    body = validate.keys(request, "request", ("brief",))
    brief = validate.boolean(body.get("brief", False), "brief")
    unread: list[str] = []
    found = engines.read()
    boxes, ours = containers.read({str(row["container"]) for row in found}, unread, brief)
    found = [row for row in found if row["container"] not in ours]
    by_id = {str(box["id"]): box for box in boxes}
    rows: list[Json] = []
    for engine in found:
        cgroup, identifier = str(engine.pop("cgroup")), engine["container"]
        box = by_id.get(str(identifier))
        rows += supervisors.of_users(cgroup, unread)
        if pods.uid_of(cgroup):
            # with cri-dockerd it is docker's, too, which does not know who starts it again
            boxes = [row for row in boxes if row is not box]
            box, row = pods.look(cgroup, unread)
            engine.update(inside_of="pod", container=box["name"] if box else None)
            boxes += [box] if box else []
            rows.append(row)
        elif box is not None:
            engine["container"] = box["name"]
            below = box["pid"] in (engine["pid"], *engines.ancestors(engine["pid"]))
            engine["inside_of"] = "main" if below and not containers.waits(box["main"]) else "exec"
        elif identifier is not None:
            engine["inside_of"] = "exec"
            unread.append(f"pid {engine['pid']} is in container {identifier[:12]}, which docker "
                          "does not tell about")  # fmt: skip
    rows += supervisors.of_units(found, boxes, unread)
    rows += supervisors.of_docker(boxes)
    rows += supervisors.of_cron(found, boxes, unread)
    rows += supervisors.of_hands(found, rows)
    told = [{name: value for name, value in box.items() if name != "pid"} for box in boxes]
    return {"engines": found, "containers": told, "supervisors": rows, "unread": unread}
