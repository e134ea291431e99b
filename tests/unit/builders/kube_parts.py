"""A Deployment as `node kube look` reports it, with one value changed at a time."""

from __future__ import annotations

from schema.observed.kube import KubeLook, Live, Pod, Rollout, Variable

NAME = "CUDA_DEVICE_MEMORY_LIMIT_0"
OOM = "[HAMI-core ERROR allocator.c:56]: Device 0 OOM 24232551680 / 24117248000"


def look(value: str | None = "24000m", log: tuple[str, ...] = (), **pod: object) -> KubeLook:
    """A Deployment of one pod."""
    one = {"name": "lucebox-1", "uid": "u", "hash": "h", "phase": "Running", "leaving": False,
           "ready": 2, "containers": 2, "restarts": 0, "waiting": None, "stuck": None, "log": log,
           "live": Live(processes=0, values={})}  # fmt: skip
    return KubeLook(
        name="lucebox", uid="u", resource_version="1", container="engine",
        containers=("engine",), event=None, changes=None,
        rollout=Rollout(done=True, failed=False, words="1 of 1", wanted=1, generation=1),
        variables={NAME: Variable(kind="env", index=-1, value=value, why=None),
                   "OTHER": Variable(kind="env", index=-1, value="0m", why=None)},
        pods=(Pod.model_validate({**one, **pod}),),
    )  # fmt: skip
