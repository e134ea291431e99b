"""The `kube` step of a change: variables of one container of a Deployment, texts of its command
line, or how many pods it has, set and set back.

Undo sets the recorded values back by the same kind of patch. It does not use `rollout undo`, which
needs the former ReplicaSet and would take other people's later changes with it.
"""

from __future__ import annotations

import os
from typing import Any

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.step_kind import PATH, POST, Kind, Seen, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.kube import deployment as kube_deployment
from node.kube import hami_cache, inspect, kubectl, names
from node.kube import patch as kube_patch

MAX_REPLICAS = 1000
TRIES = 3


def _wanted(step: Json, where: str) -> dict[str, str | None]:
    """Gives what the step sets by name: variables, or how many pods there are to be."""
    if "replicas" not in step:
        return names.values_of(step.get("set", {}), f"{where}.set")
    count = validate.number(step["replicas"], f"{where}.replicas", 0, MAX_REPLICAS)
    return {kube_deployment.REPLICAS: str(int(count))}


def _client(row: Json) -> kubectl.Client:
    """The client of a step; by the copy that a refusal asks for, where another user may change the
    file that the step was done with. The Deployment's uid says that it is the same cluster.
    """
    try:
        return kubectl.client(row["kubectl"], row["kubeconfig"])
    except NodeError as error:
        if error.code != "not_roots" or not os.path.isfile(kubectl.COPY):
            raise
        return kubectl.client(row["kubectl"], kubectl.COPY)


def _read(row: Json, client: kubectl.Client) -> Any:
    """Gives the Deployment and its container as they are now. Raises NodeError."""
    deployment = inspect.get(client, row["namespace"], row["deployment"])
    if deployment["metadata"]["uid"] != row["uid"]:
        raise NodeError(
            f"Deployment {row['deployment']} was made anew since it was looked at", "made_anew",
            "look at it, then run again",
        )  # fmt: skip
    return deployment, kube_deployment.container_of(deployment, row["container"])


def _values(deployment: Json, box: Json, values: Any, edits: Any) -> dict[str, str | None]:
    """Gives each variable's value by its name, and by the old text of an edit the one that stands.

    `values` may have the edits' old texts as well, which is what a row's `pre` and `post` do.
    """
    found = {name: kube_deployment.value_of(deployment, box, name)
             for name in values if name not in edits}  # fmt: skip
    for old, new in edits.items():
        try:
            found[old] = kube_deployment.find_text(box, old, new).value
        except NodeError:
            found[old] = None
    return found


def _now(row: Json, client: kubectl.Client) -> tuple[dict[str, str | None], Json, Json]:
    """Gives the values of a row as they are now, the Deployment and its container."""
    deployment, box = _read(row, client)
    return _values(deployment, box, row["pre"], row.get("edit") or {}), deployment, box


def _look_again(entry: Json, client: kubectl.Client) -> Json | None:
    """Gives the values as they are now, or None when that cannot be told."""
    try:
        return _now(entry, client)[0]
    except (NodeError, CannotRead):
        return None


def _gone(error: NodeError) -> bool:
    """Gives True when the Deployment that was patched is no more (deleted, or made anew)."""
    return error.code in ("no_deployment", "made_anew")


def _edited(entry: Json) -> bool:
    """Gives True when the values are neither as the step found them nor as it left them."""
    try:
        now, _, _ = _now(entry, _client(entry))
    except NodeError as error:
        if _gone(error):
            return False
        raise
    return any(now[key] not in (entry["pre"][key], entry["post"][key]) for key in now)


class DeploymentKind(Kind):
    """One container of a Deployment; `pre` and `post` are its values by name, and the texts that
    stand by the old text of each `edit`.
    """

    keys = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "set", "edit",
            "replicas", "uid", "resource_version", "clear_cache")  # fmt: skip
    required = ("kubectl", "namespace", "deployment", "container", "uid", "resource_version")
    phase = PATH
    # the pods start anew already
    taken_back = False
    told = ("cache",)

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked. Raises NodeError (bad_request)."""
        kubeconfig = step.get("kubeconfig")
        if ("replicas" in step) == bool(step.get("set") or step.get("edit")):
            raise validate.bad(f"{where}: give 'replicas', or 'set' and 'edit'")
        space = names.name(step["namespace"], f"{where}.namespace")
        name = names.name(step["deployment"], f"{where}.deployment")
        box = names.name(step["container"], f"{where}.container")
        return {
            "op": self.op,
            # what rignode undo --overwrite names; no file lies there
            "path": f"/kubernetes/{space}/deployments/{name}/{box}",
            "kubectl": validate.choice(step["kubectl"], f"{where}.kubectl", kubectl.CLIENTS),
            "kubeconfig": None
            if kubeconfig is None
            else validate.path(kubeconfig, f"{where}.kubeconfig"),
            "namespace": space,
            "deployment": name,
            "container": box,
            "set": _wanted(step, where),
            "edit": names.edits_of(step.get("edit", {}), f"{where}.edit"),
            "clear_cache": validate.boolean(step.get("clear_cache", False), f"{where}.clear_cache"),
            "uid": validate.text(step["uid"], f"{where}.uid", 100),
            "resource_version": validate.text(
                step["resource_version"], f"{where}.resource_version", 100
            ),
        }

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; the server rehearses it."""
        client = _client(step)
        deployment, box = _read(step, client)
        space = step["namespace"]
        changed = kube_patch.rehearse(client, space, deployment, box, step["set"], step["edit"])
        return bool(changed), "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Patch the Deployment. When the server refuses, nothing was changed: the record goes."""
        client = _client(step)
        deployment, box = _read(step, client)
        before = _values(deployment, box, step["set"], step["edit"])
        after = {**step["set"], **step["edit"]}
        if before == after:
            return False, "as wanted"
        if deployment["metadata"]["resourceVersion"] != step["resource_version"]:
            now = deployment["metadata"]["resourceVersion"]
            raise NodeError(
                f"Deployment {step['deployment']} was changed by somebody else meanwhile: its "
                f"resourceVersion is {now}, not {step['resource_version']}",
                "conflict",
                "look at it (kubectl get deployment), then run again",
            )
        kube_patch.rehearse(client, step["namespace"], deployment, box, step["set"], step["edit"])
        about = {key: step[key] for key in ("path", "kubectl", "kubeconfig", "namespace",
                                            "deployment", "container", "uid", "edit")}  # fmt: skip
        entry = self.record(steps, **about, pre=before, post=after)
        try:
            patch = kube_deployment.patch(deployment, box, step["set"], step["edit"])
            kube_patch.send(client, step["namespace"], step["deployment"], patch, dry=False)
        except NodeError:
            if _look_again(entry, client) == entry["pre"]:
                steps.rows.remove(entry)
                steps.write()
            raise
        entry["state"] = "done"
        if step["clear_cache"]:
            # named before: an undo after a kill in here clears it too
            entry["cache"] = "not yet looked for"
            steps.write()
            entry["cache"] = hami_cache.clear(deployment, box)
        steps.write()
        return True, "changed"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out what became of a patch by what the cluster has now."""
        now = _look_again(entry, _client(entry))
        if now == entry["post"]:
            return DONE
        return UNDONE if now == entry["pre"] else UNKNOWN

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives True when the values are neither as the step found them nor as it left them."""
        return entry["path"] not in seen.overwrite and _edited(entry)

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Set the former values back and read them again."""
        client, edits = _client(entry), entry.get("edit") or {}
        for attempt in range(TRIES):
            try:
                now, deployment, box = _now(entry, client)
            except NodeError as error:
                if _gone(error):
                    return f"nothing to set back: {error}"
                raise
            if now == entry["pre"]:
                return "restored" if attempt else "was as before"
            if _edited(entry) and not overwrite:
                raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
            todo = {key: value for key, value in entry["pre"].items() if now[key] != value}
            back = {key: value for key, value in todo.items() if key not in edits}
            texts = {edits[old]: old for old in todo if old in edits}
            try:
                patch = kube_deployment.patch(deployment, box, back, texts)
                kube_patch.send(client, entry["namespace"], entry["deployment"], patch, dry=False)
            except NodeError as error:
                # the controller writes the status all the time: read again, patch again
                if error.code != "conflict" or attempt == TRIES - 1:
                    raise
                continue
            now, deployment, box = _now(entry, client)
            if now == entry["pre"]:
                told = [hami_cache.clear(deployment, box)] if "cache" in entry else []
                return "; ".join(["restored", *told])
        raise NodeError(f"{entry['path']} does not keep the former value", "not_patched")

    def unknown(self, entry: Json) -> str | None:
        """Gives the flags that 0.2.0, whose rows have no edits, set by their name."""
        pre = entry.get("pre")
        if "edit" in entry or not isinstance(pre, dict):
            return None
        found = ", ".join(name for name in pre if name.startswith("--"))
        return f"sets {found} by its name" if found else None

    def about(self, entry: Json) -> str:
        """Gives the container of the Deployment."""
        return str(entry["path"])

    def folded(self, rows: list[Json], side: str) -> Json:
        """Gives each value by name as the first step that set it found it, or the last left it."""
        values: Json = {}
        edits: Json = {}
        for row in rows if side == POST else reversed(rows):
            values.update(row[side])
            edits.update(row.get("edit") or {})
        return {**rows[0], side: values, "edit": edits}

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the values that are not as recorded; none of a Deployment that is gone."""
        try:
            deployment, box = _read(entry, _client(entry))
        except NodeError as error:
            if _gone(error):
                return []
            raise
        now = _values(deployment, box, entry[side], entry.get("edit") or {})
        about = entry["deployment"]
        return [line for key in now
                for line in differing(f"{about} {key}", now[key], entry[side][key])]  # fmt: skip
