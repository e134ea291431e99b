"""How a swap proves that it is done: on the disk, in a fresh process, in the pods started anew."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyinfra.api import Host, State

from deploys.common.procedure import Procedure
from deploys.procedures.cluster.libvgpu import Swap, to_restart
from facts.rignode.call import AskFailed, ask_node
from gates.cluster.mounted_library import files_of, mappers_of
from operations.change.node_call import StepFailed
from operations.cluster.restart_pods import restart_pods
from schema.inputs.cluster_runbook_data import LibvgpuData
from schema.observed.library import LibraryLook, Mapped


def verify(rig: Procedure, work: Swap) -> str:
    """A line about the library on the disk and in fresh processes; StepFailed: what is not so.

    Pods that are to be restarted are restarted once the host's own proof holds.
    """
    state, data = rig.run.state, rig.plan.chart_as(LibvgpuData)
    asks = partial(_ask, state, rig.run.host(rig.plan.rig.head.name))
    request = {"folder": data.vgpu_dir, "kubectl": data.kubectl, "kubeconfig": data.kubeconfig}
    now = LibraryLook.model_validate(asks("library look", request))
    fresh = Mapped.model_validate(asks("library check", {"path": work.target}))
    file = files_of(now).get(work.target)
    if file is None or file.sha256 != work.ours:
        raise StepFailed(f"{work.target} is not {work.ours[:12]} on the disk: overwritten again?")
    if (fresh.inode, fresh.sha256) != (file.inode, work.ours):
        raise StepFailed(
            f"a fresh process with {work.target} maps inode {fresh.inode}, sha256 {fresh.sha256}, "
            f"not inode {file.inode}, {work.ours}: {fresh.said}"
        )
    restarted = restart_pods(rig.run, work.restarts)
    if restarted:
        now = LibraryLook.model_validate(asks("library look", request))
        _gone(now, work)
    old = [mapper for mapper in mappers_of(now) if mapper.sha256 != work.ours]
    rest = f"; {len(old)} processes keep the former one until their restart" if old else ""
    what = "the original" if data.remove else "ours"
    done = "".join(f"; {line}" for line in restarted)
    return f"{work.target} is {what} ({work.ours[:12]}), a fresh process maps it{done}{rest}"


def _ask(state: State, host: Host, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    """node's answer; StepFailed when the host does not answer."""
    try:
        return ask_node(state, host, verb, request)
    except AskFailed as error:
        raise StepFailed(str(error)) from None


def _gone(now: LibraryLook, work: Swap) -> None:
    """StepFailed when a pod that came up after the restart maps another library than ours."""
    late = {uid: pod for uid, pod in to_restart(now, work.ours).items() if uid not in work.restarts}
    if late:
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in late.values())
        raise StepFailed(f"{names} started after the swap and map another library: is "
                         f"{work.target} the file that the plugin mounts?")  # fmt: skip
