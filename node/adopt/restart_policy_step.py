"""The step that takes a container's restart policy away, so that docker starts it no more."""

from __future__ import annotations

from urllib.parse import quote

from node.adopt import box
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.step_kind import Kind, Seen, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN, subject
from node.docker import api

POLICIES = ("no", "always", "unless-stopped", "on-failure")
TIMEOUT_S = 30.0


def _policy(row: Json) -> Json:
    """Gives a container's policy in docker's own words; an absent one is "no"."""
    found = row["HostConfig"].get("RestartPolicy") or {}
    return {"Name": found.get("Name") or "no",
            "MaximumRetryCount": int(found.get("MaximumRetryCount") or 0)}  # fmt: skip


def _set(row: Json, policy: Json) -> None:
    path = f"/containers/{quote(row['Id'])}/update"
    status, said = api.ask("POST", path, TIMEOUT_S, {"RestartPolicy": policy})
    if status != 200:
        about = f"docker update --restart {policy['Name']} {box.name_of(row)}"
        raise NodeError(f"{about}: {status} {said}", "container")


class RestartPolicyKind(Kind):
    """A container's restart policy; `pre` and `post` as docker names them."""

    keys = required = ("container", "policy")

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        return {
            "op": self.op,
            "container": validate.image(step["container"], f"{where}.container"),
            "policy": validate.choice(step["policy"], f"{where}.policy", POLICIES),
        }

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether docker has another policy for the container."""
        now = _policy(box.require(step["container"]))["Name"]
        return now != step["policy"], f"{now} becomes {step['policy']}"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Record the policy that it has, and set the wanted one."""
        name, row = step["container"], box.require(step["container"])
        now, wanted = _policy(row), {"Name": step["policy"], "MaximumRetryCount": 0}
        if now["Name"] == wanted["Name"]:
            return False, "as wanted"
        entry = self.record(steps, container=name, known=box.known_by(row), pre=now, post=wanted)
        _set(row, wanted)
        steps.finish(entry)
        return True, f"{now['Name']} became {wanted['Name']}"

    def about(self, entry: Json) -> str:
        """Gives the policy of that container: its start is another step's."""
        return f"restart policy of {subject(entry)}"

    def describe(self, entry: Json) -> str:
        """Names the container."""
        return self.about(entry)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Docker sets a policy or does not."""
        row = box.find(entry["container"], entry["known"])
        states = {False: UNKNOWN, True: DONE}
        now = _policy(row) if row else None
        return UNDONE if now == entry["pre"] else states[now == entry["post"]]

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the policy back, unless somebody has set another one since."""
        row = box.find(entry["container"], entry["known"])
        if row is None:
            return self.leave(entry, "left alone: the container is gone")
        now = _policy(row)
        if now == entry["pre"]:
            return "was as before"
        # one that compose made again has the policy of its file already, or none of ours
        if now != entry["post"]:
            return self.leave(entry, f"left alone: somebody has set it to {now['Name']} since")
        _set(row, entry["pre"])
        return f"{entry['pre']['Name']} again"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the policy where it is not the recorded one."""
        row = box.find(entry["container"], entry["known"])
        if row is None:
            return [f"the container {entry['container']} is gone"]
        return differing(self.about(entry), _policy(row)["Name"], entry[side]["Name"])
