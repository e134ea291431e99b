"""What the kinds have in common that are about one path of the host."""

from __future__ import annotations

from node.core.errors import Json, NodeError
from node.core.step_kind import PATH, POST, PRE, Kind, Seen
from node.core.step_state import DONE, UNDONE, UNKNOWN

# what lies there is none of the kinds that a step makes
ODD = ("not_a_file", "too_large")


class PathKind(Kind):
    """A step about the entry `path`; `pre` and `post` are what `inspect` gives."""

    phase = PATH
    plans_ahead = True

    def inspect(self, path: str) -> Json:
        """Gives the description of what lies at the path now. Raises NodeError."""
        raise NotImplementedError(self.op)

    def target(self, step: Json) -> Json:
        """Gives the description of the path when the step is done."""
        raise NotImplementedError(self.op)

    def changes(self, step: Json, current: Json) -> bool:
        """Gives whether the step changes what lies there. Raises NodeError when it must not."""
        return current != self.target(step)

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something after those before it."""
        path = step["path"]
        if path not in seen.now:
            seen.now[path] = self.first_seen(step, seen)
        changed = self.changes(step, seen.now[path])
        seen.now[path] = self.target(step)
        return changed, "would change"

    def first_seen(self, step: Json, seen: Seen) -> Json:
        """Gives what lies at a path that no step before was about."""
        return self.inspect(step["path"])

    def same(self, current: Json, recorded: Json) -> bool:
        """Gives True when the description of what lies there is the recorded one."""
        return current == recorded

    def is_ours(self, entry: Json, current: Json) -> bool:
        """Gives True when the path is as the step found it or left it."""
        return any(self.same(current, entry[side]) for side in (PRE, POST))

    def check_revertible(self, entry: Json) -> None:
        """Raise NodeError when there is no way back, before an undo touches anything."""

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives True for a path that somebody edited after the step."""
        path = entry["path"]
        if any(path.startswith(moved + "/") for moved in seen.moved):
            return False  # it lies in the other tree now; looked at when that one is back
        try:
            self.check_revertible(entry)
        except NodeError as error:
            # asked for: the others go back, and this one is named at the end
            if error.code != "blob_damaged" or path not in seen.overwrite:
                raise
        if self.moves:
            seen.moved.append(path)
        try:
            now = seen.now[path] if path in seen.now else self.inspect(path)
        except NodeError as error:
            if error.code not in ODD:
                raise
            # a link, a FIFO or a huge file by now: somebody put it there, and the others go back
            now = {"kind": "odd"}
        # a step that knew the attributes puts them back too
        beside = {"xattrs": entry["xattrs"]} if "xattrs" in entry else {}
        seen.now[path] = {**entry["pre"], **beside}
        return not self.is_ours(entry, now)

    def state_of(self, entry: Json, current: Json) -> str:
        """Gives the state that what lies there tells."""
        if self.same(current, entry[POST]):
            return DONE
        return UNDONE if self.same(current, entry[PRE]) else UNKNOWN

    def about(self, entry: Json) -> str:
        """Gives the path: steps of several kinds may be about it."""
        return str(entry["path"])

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the line in which the path differs from what was recorded of it."""
        path, wanted = entry["path"], entry[side]
        now = self.inspect(path)
        if self.same(now, wanted):
            return []
        if now["kind"] != wanted["kind"]:
            return [f"{path}: {now['kind']}, not {wanted['kind']}"]
        found = (f"{key} is {_short(now.get(key))}, not {_short(wanted[key])}"
                 for key in wanted if now.get(key) != wanted[key])  # fmt: skip
        return [f"{path}: {', '.join(found)}"]


def _short(value: object) -> str:
    return str(value)[: 60 if " " in str(value) else 12]
