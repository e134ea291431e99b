"""/etc/rigbook/limit.json: what gpu_limit set in a Deployment, which its guard compares."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from node.core import validate
from node.core.errors import Json, NodeError
from node.engine.config import http_url
from node.files import state_file
from node.kube import deployment as kube_deployment
from node.kube import kubectl, names

PATH = "/etc/rigbook/limit.json"
FORMAT = 1
_KEYS = ("format", "rig", "node", "kubectl", "kubeconfig", "namespace", "deployment", "container",
         "set", "webhook", "webhook_file")  # fmt: skip
# 0.2.0 had none
_EDIT = "edit"
_REMEDY = "run deploys/gpu_limit.py without guard=true: it takes the file away; then with it"


class State(NamedTuple):
    """A container of a Deployment, the values that were set there, by name, and the texts of its
    command line, each by the one before it. The webhook is watch's kind.
    """

    rig: str
    node: str
    kubectl: str
    kubeconfig: str | None
    namespace: str
    deployment: str
    container: str
    values: dict[str, str | None]
    edits: dict[str, str]
    webhook: str | None
    webhook_file: str | None


def path() -> str:
    """Gives the file's path; RIGBOOK_LIMIT names another one (tests)."""
    return os.environ.get("RIGBOOK_LIMIT") or PATH


def parse(value: Any) -> State:
    """Gives the state of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", (*_KEYS, _EDIT), _KEYS)
    state_file.format_is(body, FORMAT)
    config, url, file = body["kubeconfig"], body["webhook"], body["webhook_file"]
    values = names.values_of(body["set"], "set")
    edits = names.edits_of(body.get(_EDIT, {}), _EDIT)
    if not values and not edits:
        raise validate.bad("set and edit are empty")
    return State(
        validate.text(body["rig"], "rig", 200),
        validate.text(body["node"], "node", 200),
        validate.choice(body["kubectl"], "kubectl", kubectl.CLIENTS),
        None if config is None else validate.path(config, "kubeconfig"),
        names.name(body["namespace"], "namespace"),
        names.name(body["deployment"], "deployment"),
        names.name(body["container"], "container"),
        values,
        edits,
        None if url is None else http_url(url, "webhook"),
        None if file is None else validate.path(file, "webhook_file"),
    )


def read() -> State | None:
    """Gives the state, or None where nothing is guarded. Raises NodeError (`limit_file`)."""
    if not os.path.lexists(path()):
        return None
    return state_file.read_settings(path(), parse, "limit_file", _REMEDY)


def differing(known: State, deployment: Json) -> list[str]:
    """Gives a line for each value of the template that is not as it was set."""
    try:
        box = kube_deployment.container_of(deployment, known.container)
    except NodeError as error:
        return [str(error)]
    found = []
    for name, value in known.values.items():
        try:
            now = kube_deployment.find(box, name).value
        except NodeError as error:
            found.append(str(error))
            continue
        if now != value:
            said = "not set" if now is None else f"{now!r}"
            found.append(f"{name} is {said}, it was set to {value!r}")
    for old, new in known.edits.items():
        try:
            if kube_deployment.find_text(box, old, new).value != new:
                found.append(f"{old!r} stands there again, it was edited to {new!r}")
        except NodeError as error:
            found.append(str(error))
    return found


def told(deployment: Json, space: str) -> Json | None:
    """Gives what is guarded in this Deployment and what differs (not the webhook's URL); None
    where nothing is, `unreadable` where the file cannot be read.
    """
    try:
        known = read()
    except NodeError as error:
        return {"unreadable": str(error)}
    if known is None or (known.namespace, known.deployment) != (
        space, deployment["metadata"]["name"],
    ):  # fmt: skip
        return None
    return {"container": known.container, "values": known.values, "edits": known.edits,
            "webhook": known.webhook is not None, "webhook_file": known.webhook_file,
            "differs": differing(known, deployment)}  # fmt: skip
