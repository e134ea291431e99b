"""kube restart: begin a rollout of a Deployment whose pods are to start anew, for good."""

from __future__ import annotations

import time
from typing import Any

from node.change import journal, kinds, transaction
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.kube import deployment as kube_deployment
from node.kube import inspect, kubectl, names

RESTART_S = 30
_KEYS = ("change", "kubectl", "kubeconfig", "namespace", "deployment", "pod")


def restart(request: Any) -> Json:
    """Begin the rollout while `pod` (its uid) is of the Deployment; gives what was done.

    A pod that is gone, or belongs to another Deployment, is left: `restarted` is false.
    """
    body = validate.keys(request, "request", _KEYS, ("change", *_KEYS[1:2], *_KEYS[3:]))
    header = journal.parse_change(body["change"])
    space = names.name(body["namespace"], "namespace")
    name = names.name(body["deployment"], "deployment")
    pod = validate.text(body["pod"], "pod", 100)
    client = kubectl.client(body["kubectl"], body.get("kubeconfig"))
    with transaction.opened(header, "kube restart") as log:
        deployment = inspect.get(client, space, name)
        before = int(deployment["metadata"]["generation"])
        box = kube_deployment.container_of(deployment, None, first=True)["name"]
        told = {"generation": before, "container": box}
        found = [row["metadata"]["uid"] for row in inspect.pods(client, space, deployment)]
        if pod not in found:
            return {"restarted": False, **told, "change": log.change_id}
        # what restart_step.py looks at: the rollout counts the generation up by one
        lasts = any(not kinds.of(row).irreversible for row in log.rows)
        entry = log.begin("restart", namespace=space, deployment=name, pod=pod, lasts=lasts,
                          kubectl=body["kubectl"], kubeconfig=body.get("kubeconfig"),
                          generation=before + 1, at_unix_s=time.time())  # fmt: skip
        try:
            done = client.run(
                ["rollout", "restart", f"deployment/{name}", f"--namespace={space}"], RESTART_S
            )
        except CannotRead as error:
            raise NodeError(str(error), "no_cluster", "see: kubectl cluster-info") from None
        if done.rc != 0:
            log.rows.remove(entry)
            log.write()
            raise NodeError(f"kubectl rollout restart: {done.last_line()[:300]}", "not_patched")
        entry["state"] = "done"
        log.write()
    return {"restarted": True, **told, "change": header["id"]}
