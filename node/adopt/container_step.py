"""The step that stops a container that is itself the engine; undo starts it again."""

from __future__ import annotations

from urllib.parse import quote

from node.adopt import box
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.step_kind import PRE, UNIT, Kind, Seen, Steps
from node.core.step_state import DONE, UNDONE, subject
from node.docker import containers

# as long as the stop of our own unit waits for TERM
GRACE_S = 30
START_TIMEOUT_S = 60.0


def start(row: Json) -> str:
    """Start a container; gives the command in words. Raises NodeError (`container`)."""
    name = box.name_of(row)
    status, said = containers.call("POST", f"/containers/{quote(row['Id'])}/start", START_TIMEOUT_S)
    if status not in (204, 304):
        raise NodeError(
            f"docker start {name}: {status} {said}", "container", f"docker logs --tail 40 {name}"
        )
    return f"docker start {name}"


def _refuse_lost(name: str, row: Json) -> None:
    """Raise NodeError (`container_lost`) for a container that docker removes when it stops."""
    if row["HostConfig"].get("AutoRemove"):
        raise NodeError(
            f"the container {name} was made with --rm: a stop removes it, and nothing could bring "
            "it back; nothing was stopped",
            "container_lost",
            f"make it anew without --rm, or stop it yourself: docker stop {name}",
        )


class ContainerKind(Kind):
    """A container that is stopped, with its engine as the main process."""

    keys = required = ("container",)
    phase = UNIT
    # an engine was ended: the caller looks, and undoes the change as a whole
    taken_back = False

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        name = validate.image(step["container"], f"{where}.container")
        return {"op": self.op, "container": name}

    def describe(self, entry: Json) -> str:
        """Names the container."""
        return f"stop container {subject(entry)}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether it runs, and may be stopped."""
        row = box.inspect(step["container"])
        if row is None or not box.is_running(row):
            return False, "does not run"
        _refuse_lost(step["container"], row)
        return True, "is stopped"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Record which container runs, and stop it."""
        name, row = step["container"], box.inspect(step["container"])
        if row is None or not box.is_running(row):
            return False, "does not run"
        _refuse_lost(name, row)
        entry = self.record(steps, container=name, known=box.known_by(row),
                            pre={"active": "active"})  # fmt: skip
        containers.stop(row["Id"], GRACE_S)
        steps.finish(entry)
        return True, f"docker stop {name}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Docker has stopped it or has not."""
        return UNDONE if box.is_running(self._row(entry)) else DONE

    def _row(self, entry: Json) -> Json | None:
        return box.find(entry["container"], entry["known"])

    def resume(self, rows: list[Json], start_it: bool) -> tuple[list[str], bool]:
        """Start it again, whoever made it anew meanwhile. Raises NodeError when it is gone."""
        entry = rows[-1]
        row = self._row(entry)
        if box.is_running(row):
            return [], False
        if row is None:
            name = entry["container"]
            raise NodeError(
                f"the container {name} is gone: it cannot be started again",
                "no_container",
                f"make it again as it was, then: docker start {name}",
            )
        return ([start(row)], False) if start_it else ([], True)

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives whether it runs, where that is not as recorded."""
        wanted = side == PRE and entry["pre"]["active"] == "active"
        runs = box.is_running(self._row(entry))
        words = "runs" if runs else "does not run"
        return [] if runs == wanted else [f"container {entry['container']} {words}"]
