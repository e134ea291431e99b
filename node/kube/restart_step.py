"""The step of a rollout that was begun anew: it cannot be undone, and may leave pods that last."""

from __future__ import annotations

import calendar
import time

from node.change.irreversible import Irreversible
from node.core.errors import Json, NodeError
from node.core.step_kind import PRE
from node.kube import inspect, kubectl


def _started(pod: Json, since_unix_s: float) -> bool:
    """Gives True for a pod that runs and was made since then."""
    made = time.strptime(pod["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    runs = (pod.get("status") or {}).get("phase") == "Running"
    return runs and calendar.timegm(made) >= int(since_unix_s)


class RestartKind(Irreversible):
    """A restart alone leaves the same pods, anew. After other steps of its change (`lasts`) they
    run with what these gave them, also once that was taken back.
    """

    passing = False

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives a line while pods of this rollout run; none once there was another one."""
        if side != PRE or not entry.get("lasts", True):
            return []
        space, name = entry.get("namespace"), entry.get("deployment")
        line = (f"restart: the pods of Deployment {space}/{name} keep what they started with: "
                f"kubectl rollout restart deployment/{name} --namespace={space}")  # fmt: skip
        if "generation" not in entry:  # an older journal
            return [line]
        client = kubectl.client(entry["kubectl"], entry["kubeconfig"])
        try:
            deployment = inspect.get(client, entry["namespace"], entry["deployment"])
        except NodeError as error:
            if error.code == "no_deployment":
                return []
            raise
        if int(deployment["metadata"]["generation"]) != entry["generation"]:
            return []
        pods = inspect.pods(client, entry["namespace"], deployment)
        return [line] if any(_started(pod, entry["at_unix_s"]) for pod in pods) else []
