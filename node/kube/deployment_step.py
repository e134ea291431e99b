"""The `kube` step of a change: variables of one container of a Deployment, or how many pods it has,
set and set back.

Undo sets the recorded values back by the same kind of patch. It does not use `rollout undo`, which
needs the former ReplicaSet and would take other people's later changes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.kube import deployment as kube_deployment
from node.kube import hami_cache, inspect, kubectl
from node.kube import patch as kube_patch

KEYS = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "set", "replicas", "uid",
        "resource_version", "clear_cache")  # fmt: skip
REQUIRED = ("kubectl", "namespace", "deployment", "container", "uid", "resource_version")
MAX_REPLICAS = 1000
TRIES = 3
Record = Callable[[], None]


def checked(step: Json, where: str) -> Json:
    """Gives a step with every value checked. Raises NodeError (bad_request)."""
    kubeconfig = step.get("kubeconfig")
    space = inspect.name(step["namespace"], f"{where}.namespace")
    name = inspect.name(step["deployment"], f"{where}.deployment")
    box = inspect.name(step["container"], f"{where}.container")
    return {
        "op": "kube",
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
        "clear_cache": validate.boolean(step.get("clear_cache", False), f"{where}.clear_cache"),
        "uid": validate.text(step["uid"], f"{where}.uid", 100),
        "resource_version": validate.text(
            step["resource_version"], f"{where}.resource_version", 100
        ),
    }


def _wanted(step: Json, where: str) -> dict[str, str | None]:
    """Gives what the step sets by name: variables, or how many pods there are to be."""
    if "replicas" not in step:
        return inspect.values_of(step.get("set"), f"{where}.set")
    if "set" in step:
        raise validate.bad(f"{where}: give 'set' or 'replicas', one of them")
    count = validate.number(step["replicas"], f"{where}.replicas", 0, MAX_REPLICAS)
    return {kube_deployment.REPLICAS: str(int(count))}


def _client(row: Json) -> kubectl.Client:
    return kubectl.client(row["kubectl"], row["kubeconfig"])


def _read(row: Json, client: kubectl.Client) -> Any:
    """Gives the Deployment and its container as they are now. Raises NodeError."""
    deployment = inspect.get(client, row["namespace"], row["deployment"])
    if deployment["metadata"]["uid"] != row["uid"]:
        raise NodeError(
            f"Deployment {row['deployment']} was made anew since it was looked at", "made_anew",
            "look at it, then run again",
        )  # fmt: skip
    return deployment, kube_deployment.container_of(deployment, row["container"])


def _values(deployment: Json, box: Json, names: Any) -> dict[str, str | None]:
    return {name: kube_deployment.value_of(deployment, box, name) for name in names}


def dry(step: Json) -> bool:
    """Gives whether the step would change something; the server rehearses it."""
    client = _client(step)
    deployment, box = _read(step, client)
    return bool(kube_patch.rehearse(client, step["namespace"], deployment, box, step["set"]))


def do(step: Json, records: list[Json], record: Record) -> bool:
    """Patch the Deployment; gives whether it changed something.

    The former values and the intent are recorded before. When the server refuses, nothing was
    changed and the record goes.
    """
    client = _client(step)
    deployment, box = _read(step, client)
    before = _values(deployment, box, step["set"])
    if before == step["set"]:
        return False
    if deployment["metadata"]["resourceVersion"] != step["resource_version"]:
        now = deployment["metadata"]["resourceVersion"]
        raise NodeError(
            f"Deployment {step['deployment']} was changed by somebody else meanwhile: its "
            f"resourceVersion is {now}, not {step['resource_version']}",
            "conflict",
            "look at it (kubectl get deployment), then run again",
        )
    kube_patch.rehearse(client, step["namespace"], deployment, box, step["set"])
    entry = {key: step[key] for key in ("op", "path", "kubectl", "kubeconfig", "namespace",
                                        "deployment", "container", "uid")}  # fmt: skip
    entry.update(state="intent", pre=before, post=dict(step["set"]))
    records.append(entry)
    record()
    try:
        patch = kube_deployment.patch(deployment, box, step["set"])
        kube_patch.send(client, step["namespace"], step["deployment"], patch, dry=False)
    except NodeError:
        if _look_again(entry, client) == entry["pre"]:
            records.remove(entry)
            record()
        raise
    entry["state"] = "done"
    if step["clear_cache"]:
        # named before: an undo after a kill in here clears it too
        entry["cache"] = "not yet looked for"
        record()
        entry["cache"] = hami_cache.clear(deployment, box)
    record()
    return True


def _look_again(entry: Json, client: kubectl.Client) -> Json | None:
    """Gives the values as they are now, or None when that cannot be told."""
    try:
        deployment, box = _read(entry, client)
        return _values(deployment, box, entry["pre"])
    except (NodeError, CannotRead):
        return None


def settle(entry: Json) -> bool:
    """Find out what became of a patch that a kill left announced; gives whether it is known now."""
    try:
        now = _look_again(entry, _client(entry))
    except NodeError:
        return False
    if now == entry["post"]:
        entry["state"] = "done"
    elif now == entry["pre"]:
        entry["state"] = "undone"
    else:
        return False
    return True


def _gone(error: NodeError) -> bool:
    """Gives True when the Deployment that was patched is no more (deleted, or made anew)."""
    return error.code in ("no_deployment", "made_anew")


def edited(entry: Json) -> bool:
    """Gives True when the variables are neither as the step found them nor as it left them."""
    try:
        deployment, box = _read(entry, _client(entry))
    except NodeError as error:
        if _gone(error):
            return False
        raise
    now = _values(deployment, box, entry["pre"])
    return any(now[key] not in (entry["pre"][key], entry["post"][key]) for key in now)


def revert(entry: Json, overwrite: bool) -> str:
    """Set the former values back and read them again; gives what was done in words."""
    client = _client(entry)
    for attempt in range(TRIES):
        try:
            deployment, box = _read(entry, client)
        except NodeError as error:
            if _gone(error):
                return f"nothing to set back: {error}"
            raise
        now = _values(deployment, box, entry["pre"])
        if now == entry["pre"]:
            return "restored" if attempt else "was as before"
        if edited(entry) and not overwrite:
            raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
        back = {key: value for key, value in entry["pre"].items() if now[key] != value}
        try:
            patch = kube_deployment.patch(deployment, box, back)
            kube_patch.send(client, entry["namespace"], entry["deployment"], patch, dry=False)
        except NodeError as error:
            # the controller writes the status all the time: read again, patch again
            if error.code != "conflict" or attempt == TRIES - 1:
                raise
            continue
        deployment, box = _read(entry, client)
        if _values(deployment, box, entry["pre"]) == entry["pre"]:
            told = [hami_cache.clear(deployment, box)] if "cache" in entry else []
            return "; ".join(["restored", *told])
    raise NodeError(f"{entry['path']} does not keep the former value", "not_patched")
