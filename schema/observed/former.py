"""What runs a vLLM on one host by other means than rigbook, and what would start it again.

`node former` reports it (node/snapshot/former.py); its caller has to ask for it, an ordinary
snapshot has none of it. A process is identified by pid + start_ticks, as everywhere.
"""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen
from schema.observed.docker import Mount

# unit: a systemd unit runs it. container-policy: docker starts the container again. compose: a
# project made the container. cron: a line of a crontab starts it. pod: Kubernetes. shell: somebody
# started it by hand; nothing starts it again.
SupervisorKind = Literal["unit", "container-policy", "compose", "cron", "pod", "shell"]


class FormerEngine(Frozen):
    """One `vllm serve` process, without its own workers.

    `env` is its whole environment; the values of `secret_env` are masked in it, and the values of
    `secret_flags` (as `--api-key`) in `argv`. `inside_of`: "main" is the container's main process
    or below it, "exec" another process of a container (docker exec), "pod" one of Kubernetes',
    "host" none of a container. `container` is
    a FormerContainer's name. `venv` is the environment's folder, as the process sees it. `port` and
    `node_rank` are read from argv, with vLLM's defaults (8000, 0); `is_head` is false with
    --headless.
    """

    pid: int
    start_ticks: int
    argv: tuple[str, ...]
    env: dict[str, str]
    secret_env: tuple[str, ...] = ()
    secret_flags: tuple[str, ...] = ()
    cwd: str | None
    uid: int
    user: str | None
    exe: str | None
    unit: str | None
    container: str | None
    inside_of: Literal["main", "exec", "pod", "host"]
    venv: str | None
    port: int
    node_rank: int
    is_head: bool


class FormerContainer(Frozen):
    """A container with an engine in it, or one that a supervisor names, and how it was made.

    `env` is what the container was made with, `image_env` the image's own part of it; the values of
    secrets are masked. `image` is the reference it was made from; `digests` (name@sha256:…) and
    `tags` lead to that image on this host now. `shm_bytes` is 0 where docker's default holds.
    `gpus` is true with a device request for GPUs (--gpus). `main` is the command of its main
    process.
    """

    id: str
    name: str
    image: str
    image_id: str
    digests: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    state: str
    main: tuple[str, ...]
    env: dict[str, str]
    image_env: dict[str, str]
    mounts: tuple[Mount, ...]
    restart_policy: str
    auto_remove: bool
    network_mode: str
    ipc_mode: str
    shm_bytes: int = 0
    privileged: bool
    runtime: str
    gpus: bool
    labels: dict[str, str]
    # what rigbook's recipe has no key for: --cap-add, --ulimit, --device and their like, in words
    other_options: tuple[str, ...] = ()
    # files put into its own layer by hand (docker cp, a patch), at most 30: ours starts without
    changed: tuple[str, ...] = ()


class Supervisor(Frozen):
    """What starts a former engine, or started it.

    `name`: unit name; container; compose project; FILE:LINE of a crontab; NAMESPACE/DEPLOYMENT;
    for a shell the pid of the engine. `starts_at_boot` is what it would do at the next boot, or
    some time after it (a periodic line of a crontab). `evidence` says where this was seen. The
    fields below belong to one kind each.
    """

    kind: SupervisorKind
    name: str
    starts_at_boot: bool
    evidence: str
    # unit
    enabled: str | None = None
    active: str | None = None
    triggered_by: tuple[str, ...] = ()
    # unit, container-policy
    restart: str | None = None
    # container-policy, compose: the containers' names; the policy of each is its container's
    containers: tuple[str, ...] = ()
    # compose
    project: str | None = None
    files: tuple[str, ...] = ()
    working_dir: str | None = None
    services: tuple[str, ...] = ()
    # cron: line numbers start at 1; `text` is the line with secrets masked
    file: str | None = None
    line: int | None = None
    text: str | None = None
    # pod: the identity and version of its Deployment as it was seen, a container of its template,
    # and the seconds that the pod is given to end by itself
    namespace: str | None = None
    deployment: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    template_container: str | None = None
    grace_s: float = 0.0


class Former(Frozen):
    """What of this was found on one host; empty tuples: nothing.

    `unread` names what could not be looked at, with the reason: it may hold more.
    """

    engines: tuple[FormerEngine, ...] = ()
    containers: tuple[FormerContainer, ...] = ()
    supervisors: tuple[Supervisor, ...] = ()
    unread: tuple[str, ...] = ()
