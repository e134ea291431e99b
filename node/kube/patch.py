"""Patch a Deployment: from a file that is in memory alone, rehearsed by the server first."""

from __future__ import annotations

import json
import os

from node.core.errors import CannotRead, Json, NodeError
from node.kube import deployment as kube_deployment
from node.kube import kubectl

PATCH_S = 30


def send(client: kubectl.Client, space: str, name: str, patch: Json, dry: bool) -> Json:
    """Send a patch; gives the Deployment that the server answers with.

    Raises NodeError: `conflict` when somebody else wrote meanwhile, `forbidden`, `not_patched`.
    """
    fd = os.memfd_create("patch", 0)
    try:
        os.write(fd, json.dumps(patch).encode())
        words = ["patch", "deployment", name, f"--namespace={space}", "--type=strategic",
                 f"--patch-file=/proc/{os.getpid()}/fd/{fd}"]  # fmt: skip
        try:
            found: Json = client.json([*words, *(["--dry-run=server"] if dry else [])], PATCH_S)
        except CannotRead as error:
            raise _explained(str(error), name) from None
        return found
    finally:
        os.close(fd)


def _explained(said: str, name: str) -> NodeError:
    """Gives kubectl's words as an error that a person can act on."""
    low = said.lower()
    if "conflict" in low or "object has been modified" in low:
        return NodeError(
            f"Deployment {name} was changed by somebody else meanwhile: {said}",
            "conflict",
            "look at it (kubectl get deployment), then run again",
        )
    if "forbidden" in low:
        return NodeError(
            f"this kubectl may not patch Deployment {name}: {said}",
            "forbidden",
            "use an account whose role has the verb patch on deployments.apps (kubeconfig)",
        )
    return NodeError(said, "not_patched", "kubectl describe deployment says more")


def rehearse(
    client: kubectl.Client,
    space: str,
    deployment: Json,
    box: Json,
    values: dict[str, str | None],
    edits: dict[str, str],
) -> list[Json]:
    """Gives what the server says that a patch of these changes; nothing is changed.

    Raises NodeError when it would change anything else.
    """
    wanted = kube_deployment.patch(deployment, box, values, edits)
    after = send(client, space, deployment["metadata"]["name"], wanted, dry=True)
    found = kube_deployment.differences(deployment, after)
    allowed = kube_deployment.expected(box, values, edits)
    strange = [row["path"] for row in found if row["path"] not in allowed]
    if strange:
        raise NodeError(
            f"the server would change more than {', '.join(sorted({**values, **edits}))}: "
            f"{', '.join(strange)}",
            "not_patched",
            "an admission webhook changes it too: kubectl get mutatingwebhookconfigurations",
        )
    return found
