"""The engine's files: script, environment, units, guards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from node.rules.secret import SECRETS_PATH
from node.rules.text import environment_value
from schema import render_unit
from schema.core import SpecError, shell_lines, single_line, systemd_lines
from schema.plan import (
    CONTAINER,
    ENGINE_DIR,
    PAIR_SERVICE,
    PAIR_TIMER,
    UNIT,
    Document,
    EngineSpec,
    Node,
    Plan,
    Rig,
)
from schema.recipe import LOADS_CODE, ContainerSpec, Recipe

# The arguments of `docker run` that give the engine's container its GPUs.

NVIDIA = "nvidia"


def gpu_arguments(box: ContainerSpec) -> list[list[str]]:
    """The groups of arguments; none for an engine without GPUs.

    CDI devices go by `--device`, everything else by `--gpus`.
    """
    groups = []
    runtime = runtime_asked(box)
    if runtime is not None:
        groups.append(["--runtime", runtime])
    if cdi_asked(box):
        groups += [["--device", name] for name in cdi_asked(box)]
    elif box.gpus:
        groups.append(["--gpus", box.gpus])
    return groups


def runtime_asked(box: ContainerSpec) -> str | None:
    """The runtime that docker is asked for; None: its default.

    `--gpus` and CDI do all that NVIDIA's runtime does, and a stock DGX OS has the runtime
    unregistered: `unknown or invalid runtime name: nvidia` (gpustack#3654, dgx-spark-playbooks#26).
    """
    return None if box.runtime == NVIDIA and box.gpus else box.runtime


def cdi_asked(box: ContainerSpec) -> tuple[str, ...]:
    """The CDI devices that `gpus` names (nvidia.com/gpu=all), separated by commas."""
    names = (box.gpus or "").split(",")
    return tuple(names) if all("/" in name and "=" in name for name in names) else ()


# How long the parts of an engine's start may take on a node, in seconds, and what memory it needs.
#
# systemd's timeouts and start limit follow from these, so that none of them ends a start that is
# still within its budget.

# A bond at boot, with its switch or its peer, comes minutes after the rest on some boards.
FABRIC_WAIT_S = 300
# prelaunch's other parts (node/engine/start.py): docker, leftovers and orphans, memory.
PRELAUNCH_S = 120 + 180 + 60
MARGIN_S = 60
STOP_S = 60
RESTART_S = 15
# The head needs three looks, 15 s apart, to see that its worker is gone; a worker that is back
# sooner would join the head that is about to be restarted.
WORKER_RESTART_S = 60
STARTS = 3

# vLLM's own defaults, for recipes that leave the value out.
DEFAULT_UTILIZATION = 0.9
DEFAULT_CPU_KVCACHE_GIB = 4.0
CPU_FLOOR_GIB = 2.0


@dataclass(frozen=True)
class UnitTimeouts:
    """The unit's times on one node: systemd's limits for start and stop, its pause, its window."""

    timeout_start_s: int
    timeout_stop_s: int
    restart_s: int
    start_limit_s: int


def times(rig: Rig, node: Node, recipe: Recipe) -> UnitTimeouts:
    """The times of `node`'s unit.

    The window of the start limit is longer than STARTS starts that fail as late as they can: a
    shorter one would never count to its end, and the loop would go on.
    """
    several = len(rig.nodes) > 1
    budget = recipe.expect.start_budget_s
    prelaunch = PRELAUNCH_S + (FABRIC_WAIT_S if several else 0)
    # The head waits for its peers before, and for its own answer after; a rank that never joins
    # is restarted after the budget (node/engine/peer.py).
    waits = budget * 2 if several and node.role == "head" else budget
    start = prelaunch + waits + MARGIN_S
    pause = WORKER_RESTART_S if several and node.role == "worker" else RESTART_S
    cycle = start + MARGIN_S + 2 * STOP_S + pause
    return UnitTimeouts(start, STOP_S, pause, STARTS * cycle)


def utilization(spec: EngineSpec) -> float:
    """The share of the GPU's memory that vLLM takes; SpecError when it is no share."""
    given = spec.flags.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
    try:
        share = float(str(given))
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise SpecError(
            f"vllm_serve.gpu_memory_utilization: is {given!r}; allowed: more than 0, up to 1"
        )
    return share


def gpus_needed(rig: Rig, spec: EngineSpec) -> int:
    """GPUs that one node must have: tensor times pipeline ranks, spread over the nodes."""
    flags = spec.flags
    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        try:
            ranks *= int(str(flags.get(name, 1)))
        except ValueError:
            raise SpecError(
                f"vllm_serve.{name}: is {flags[name]!r}; allowed: a whole number"
            ) from None
    return max(1, ceil(ranks / len(rig.nodes)))


def devices(recipe: Recipe, spec: EngineSpec) -> tuple[str, ...] | None:
    """The GPUs that the engine gets, as indices or UUIDs of the host; None: all of them.

    Of the container's `gpus` (`device=…`, or CDI devices), NVIDIA_VISIBLE_DEVICES and
    CUDA_VISIBLE_DEVICES; the last one counts within what the others leave.
    """
    box = recipe.container
    given = (box.gpus or "").strip("\"'") if box else ""
    chosen = _listed(given.removeprefix("device=")) if given.startswith("device=") else None
    if box is not None and cdi_asked(box):
        chosen = _listed(",".join(name.partition("=")[2] for name in cdi_asked(box)))
    if chosen is None and box is not None:
        chosen = _listed(spec.environ.get("NVIDIA_VISIBLE_DEVICES", "all"))
    inner = _listed(spec.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    if chosen is None or inner is None:
        return inner if chosen is None else chosen
    return tuple(
        chosen[int(one)] if one.isdigit() and int(one) < len(chosen) else one for one in inner
    )


def _listed(text: str) -> tuple[str, ...] | None:
    """A list of GPUs as CUDA and the container runtime take it; None for all of them."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    return None if not words or words == ("all",) else words


def cpu_memory(rig: Rig, spec: EngineSpec) -> int:
    """Bytes of system memory that an engine without GPUs needs on one node.

    Each rank keeps a cache of its own.
    """
    given = spec.environ.get("VLLM_CPU_KVCACHE_SPACE") or 0
    try:
        space = float(given)
    except ValueError:
        raise SpecError(f"env.VLLM_CPU_KVCACHE_SPACE: is {given!r}; allowed: GiB") from None
    caches = (space or DEFAULT_CPU_KVCACHE_GIB) * gpus_needed(rig, spec)
    return ceil((caches + CPU_FLOOR_GIB) * 1024**3)


# node.json: what a node's own program knows of its engine (node/engine/config.py reads it).

FORMAT = 1


def node_file(rig: Rig, node: Node, recipe: Recipe, spec: EngineSpec) -> str:
    """The file's text; the same plan gives the same bytes. It holds no secret."""
    document: dict[str, object] = {
        "format": FORMAT,
        "rig": rig.name,
        "node": node.name,
        "role": node.role,
        "rank": node.rank,
        "unit": UNIT,
        "container": CONTAINER if recipe.container else None,
        "image": recipe.container.image if recipe.container else None,
        "fabric": _fabric(rig, node),
        "peers": [str(n.fabric_address) for n in rig.nodes if n.name != node.name],
        "master": _master(rig, recipe),
        "endpoint": endpoint(rig, recipe) if node.role == "head" else None,
        "ports": _ports(node, recipe),
        "start_budget_s": recipe.expect.start_budget_s,
        "memory": _memory(rig, recipe, spec),
        "needs_nvidia": recipe.expect.needs_nvidia,
        "weights": spec.weights,
    }
    if recipe.venv is not None:
        document["venv"] = {"path": spec.venv, "user": spec.user, "version": recipe.venv.version}
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _memory(rig: Rig, recipe: Recipe, spec: EngineSpec) -> dict[str, object]:
    """What the start will ask for; `devices` where the engine does not get all GPUs."""
    nvidia = recipe.expect.needs_nvidia
    need: dict[str, object] = {
        "gpu_memory_utilization": utilization(spec),
        "gpus": gpus_needed(rig, spec) if nvidia else 0,
        "cpu_bytes": 0 if nvidia else cpu_memory(rig, spec),
    }
    chosen = devices(recipe, spec)
    if nvidia and chosen is not None:
        need["devices"] = list(chosen)
    return need


def endpoint(rig: Rig, recipe: Recipe) -> dict[str, object]:
    """Where the rig's head answers, and what is asked of it."""
    return {
        "url": f"http://{rig.head.lan_address}:{recipe.port}",
        "model": recipe.served_model_name,
        "reasoning": recipe.expect.reasoning,
        "chat_template_kwargs": recipe.expect.chat_template_kwargs,
    }


def _fabric(rig: Rig, node: Node) -> dict[str, object] | None:
    if rig.fabric is None or node.fabric_device is None or len(rig.nodes) == 1:
        return None
    return {
        "device": node.fabric_device,
        "address": str(node.fabric_address),
        "mtu": rig.fabric.mtu,
        "wait_s": FABRIC_WAIT_S,
    }


def _master(rig: Rig, recipe: Recipe) -> dict[str, object] | None:
    if recipe.multi_node is None:
        return None
    return {"address": str(rig.head.fabric_address), "port": recipe.multi_node.master_port}


def _ports(node: Node, recipe: Recipe) -> list[int]:
    """The ports that must be free for this node's start; an orphan of either role holds them."""
    ports = [recipe.port] if node.role == "head" else []
    if recipe.multi_node is not None:
        ports.append(recipe.multi_node.master_port)
    return ports


# The files that land on a node for its engine, rendered from templates/.

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
SCRIPT_PATH = f"{ENGINE_DIR}/serve.sh"
ENV_PATH = f"{ENGINE_DIR}/engine.env"
NODE_PATH = f"{ENGINE_DIR}/node.json"
UNITS_DIR = "/etc/systemd/system"
UNIT_PATH = f"{UNITS_DIR}/{UNIT}"
PAIR_SERVICE_PATH = f"{UNITS_DIR}/{PAIR_SERVICE}"
PAIR_TIMER_PATH = f"{UNITS_DIR}/{PAIR_TIMER}"
SCRIPT_IN_CONTAINER = "/rigbook/serve.sh"
# Half of the machine's memory on top, for the kernel's choice (proc(5)).
OOM_SCORE_ADJ = 500
# root's lines in a unit with a user: systemd gives them that user's HOME and the engine's variables
CLEAN = "/usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def documents(
    rig: Rig, node: Node, recipe: Recipe, profile: str, spec: EngineSpec
) -> tuple[Document, ...]:
    """What lands on `node` for its engine, in this order: the launch script, the environment
    file, the unit, node.json, and on rigs of several nodes the pair check and its timer.

    docker reads the environment file raw, systemd (for a venv) with quotes; it is root's alone.
    The recipe's secrets stand in a file beside it, which the node renders (SECRETS_PATH).
    SpecError when a value has no form in it.
    """
    names: dict[str, object] = {
        "recipe": recipe.name,
        "profile": profile,
        "role": node.role,
        "rank": node.rank,
        "rig": rig.name,
    }
    venv = shlex.quote(spec.venv) if spec.venv else None
    environ, alone = _env_file(spec.environ, recipe.name), {}
    if spec.venv is not None:
        # the unit's environment is also that of its root lines: what loads code stays out of it
        alone = {name: shlex.quote(environ[name]) for name in environ if LOADS_CODE.match(name)}
        environ = {name: environment_value(value) for name, value in environ.items()
                   if name not in alone}  # fmt: skip
    script = render_engine_files(
        SCRIPT_PATH, **names, command=shell_lines(spec.argv), venv=venv, alone=alone
    )
    environment = render_engine_files(ENV_PATH, environ=environ)
    unit = _unit(rig, node, recipe, profile, spec, names)
    files = (
        Document(SCRIPT_PATH, script, "0755"),
        Document(ENV_PATH, environment, "0600"),
        Document(UNIT_PATH, unit, "0644"),
        Document(NODE_PATH, node_file(rig, node, recipe, spec), "0644"),
    )
    if len(rig.nodes) == 1:
        return files
    pair = (PAIR_SERVICE_PATH, PAIR_TIMER_PATH)
    return files + tuple(
        Document(path, render_engine_files(path, rig=rig.name), "0644") for path in pair
    )


def _unit(
    rig: Rig,
    node: Node,
    recipe: Recipe,
    profile: str,
    spec: EngineSpec,
    names: dict[str, object],
) -> str:
    """The text of the engine's unit, of the template for the recipe's runtime."""
    common = {**names, "container": CONTAINER, "times": times(rig, node, recipe), "starts": STARTS}
    if recipe.container is None:
        paths = {"script": SCRIPT_PATH, "environments": env_files(recipe), "user": spec.user,
                 "clean": CLEAN, "oom_score_adj": OOM_SCORE_ADJ}  # fmt: skip
        return render_engine_files(f"{UNIT_PATH}.venv", **common, **paths)
    run = systemd_lines(docker_run(recipe, profile, spec))
    return render_engine_files(UNIT_PATH, **common, docker_run=run)


def env_files(recipe: Recipe) -> list[str]:
    """The files that the engine's environment is read from."""
    return [ENV_PATH, SECRETS_PATH] if recipe.secrets else [ENV_PATH]


def docker_run(recipe: Recipe, profile: str, spec: EngineSpec) -> list[list[str]]:
    """The engine's `docker run`, as groups of arguments that stand on one line each.

    systemd is the only supervisor, so docker's restart policy is `no`. The launch script and the
    environment come from the host: what lives in a container's own layer is gone after a restart.
    SpecError for a recipe whose engine lives in a venv.
    """
    box = recipe.container
    if box is None:
        raise SpecError(f"recipe {recipe.name}: container: is missing; allowed: one, for docker")
    groups = [
        ["/usr/bin/docker", "run"],
        ["--name", CONTAINER],
        ["--rm", "--restart", "no", "--init"],
        ["--network", "host"],
        ["--ipc", box.ipc],
    ]
    groups += gpu_arguments(box)
    if box.privileged:
        groups.append(["--privileged"])
    if box.shm_size:
        groups.append(["--shm-size", box.shm_size])
    groups += [
        ["--pull", "never"],
        # Before anything else of the host, where memory runs out (docs/adr/0026).
        ["--oom-score-adj", str(OOM_SCORE_ADJ)],
        ["--log-driver", "local", "--log-opt", "max-size=20m"],
        ["--label", f"rigbook.recipe={recipe.name}"],
        ["--label", f"rigbook.profile={profile}"],
        *(["--env-file", path] for path in env_files(recipe)),
        ["-v", f"{SCRIPT_PATH}:{SCRIPT_IN_CONTAINER}:ro"],
    ]
    for source, target, read_only in spec.volumes:
        groups.append(["-v", f"{source}:{target}{':ro' if read_only else ''}"])
    # The image's own entrypoint may be anything; the script is what has to run.
    groups.append(["--entrypoint", "/bin/bash", box.image, SCRIPT_IN_CONTAINER])
    return groups


def _env_file(environ: dict[str, str], recipe: str) -> dict[str, str]:
    """The environment, when docker's --env-file can carry it (one raw NAME=VALUE a line)."""
    for name, value in environ.items():
        try:
            single_line(value)
        except ValueError as error:
            raise SpecError(f"recipe {recipe}: env.{name}: {error}") from None
        if not name or name.startswith("#") or "=" in name or name.split() != [name]:
            raise SpecError(f"recipe {recipe}: env: {name!r} cannot be a name in an env file")
    return environ


def render_engine_files(target: str, **values: object) -> str:
    """The text of the template that stands at `target` in templates/."""
    return _templates().get_template(f"{target.lstrip('/')}.j2").render(**values)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    # No HTML escaping: these are scripts and units, quoted by schema.core.
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    made.globals["program"] = render_unit.program_path()
    return made


# The files of a watch: what is asked, how often, and who is told (node/engine/silence.py reads
# it).

WATCH_SERVICE = "rigbook-watch.service"
WATCH_TIMER = "rigbook-watch.timer"
WATCH_PATH = "/etc/rigbook/watch.json"
SERVICE_PATH = f"{UNITS_DIR}/{WATCH_SERVICE}"
TIMER_PATH = f"{UNITS_DIR}/{WATCH_TIMER}"
# No engine makes no token for less than this and is called silent: a step may wait for a page of
# weights or for a kernel that is not compiled yet.
LEAST_SILENCE_S = 120
# An eighth of the slowest prefill that was measured on these rigs (190,000 tokens at 797 tok/s).
PREFILL_TOKENS_S = 100
# What vLLM takes where the recipe does not say: the largest of its defaults, and a long context.
BATCHED_TOKENS, MODEL_LEN = 16384, 262144


class Watching(Protocol):
    """What watch is asked for: WatchData of schema.keys, or of a Kubernetes rig."""

    @property
    def url(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def misses(self) -> int: ...
    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...
    @property
    def interval(self) -> int: ...
    @property
    def restart(self) -> bool: ...
    @property
    def silent_s(self) -> int | None: ...
    @property
    def textfile(self) -> str | None: ...


def watch_documents(plan: Plan, node: str, data: Watching) -> tuple[Document, ...]:
    """What lands on the node that watches: its configuration (root's alone), service and timer."""
    asked = endpoint(plan.rig, plan.recipe)
    if data.url is not None and plan.deployment is None:
        asked["url"] = data.url.rstrip("/")
    if data.model is not None and plan.deployment is None:
        asked["model"] = data.model
    document = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": node,
        "endpoint": asked,
        "misses": data.misses,
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
        "textfile": data.textfile,
        "silence": _silence(plan, node, data),
        "deployment": _deployment(plan),
    }
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    verb = "watch" if plan.deployment is None else "watch pod"
    values = {"rig": plan.rig.name, "interval": data.interval, "verb": verb}
    return (
        Document(WATCH_PATH, text, "0600"),
        Document(SERVICE_PATH, render_engine_files(SERVICE_PATH, **values), "0644"),
        Document(TIMER_PATH, render_engine_files(TIMER_PATH, **values), "0644"),
    )


def _silence(plan: Plan, node: str, data: Watching) -> dict[str, object] | None:
    """How long the node's own engine may be silent; None where another endpoint is asked."""
    if plan.deployment is None and (data.url is not None or node != plan.rig.head.name):
        return None
    # what a chart's engine takes is not known: the longest of vLLM's defaults
    step, prompt = limits({} if plan.deployment is not None else plan.specs[node].flags)
    given = data.silent_s
    return {"step_s": given or step, "prompt_s": given or prompt, "restart": data.restart}


def _deployment(plan: Plan) -> dict[str, object] | None:
    """Which Deployment it is and how it is asked (node/kube/watched.py reads it)."""
    chart = plan.deployment
    if chart is None:
        return None
    keys = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "url", "service",
            "port", "key_file")  # fmt: skip
    return {key: getattr(chart, key) for key in keys}


def limits(flags: Mapping[str, object]) -> tuple[int, int]:
    """Seconds that the longest prefill of these flags explains: of one step, of a whole prompt."""
    prompt = _number(flags.get("max_model_len"), MODEL_LEN)
    step = min(_number(flags.get("max_num_batched_tokens"), BATCHED_TOKENS), prompt)
    if str(flags.get("enable_chunked_prefill", True)).lower() == "false":
        step = prompt
    seconds = [max(LEAST_SILENCE_S, ceil(tokens / PREFILL_TOKENS_S)) for tokens in (step, prompt)]
    return seconds[0], seconds[1]


def _number(value: object, default: int) -> int:
    """A whole number of tokens; vLLM also takes 128k and -1, which say less than the default."""
    text = str(value)
    return int(text) if text.isdigit() else default


# What lands on a host beside a swapped library: what is known of it, and the guard's units.

LIBRARY_STATE_PATH = "/etc/rigbook/library.json"
GUARD_SERVICE = "rigbook-library.service"
LIBRARY_GUARD_PATH = "rigbook-library.path"
LIBRARY_GUARD_TIMER = "rigbook-library.timer"
UNITS = (GUARD_SERVICE, LIBRARY_GUARD_PATH, LIBRARY_GUARD_TIMER)
LIBRARY_UNIT_FILES = tuple(f"{UNITS_DIR}/{name}" for name in UNITS)
LIBRARY_FILES = ("/etc/rigbook", LIBRARY_STATE_PATH, *LIBRARY_UNIT_FILES)


class Guarding(Protocol):
    """What libvgpu is asked for: schema.keys.LibvgpuData."""

    @property
    def guard(self) -> bool: ...
    @property
    def reapply(self) -> bool: ...
    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...


def library_documents(
    plan: Plan, data: Guarding, target: str, original: str, ours: str
) -> tuple[Document, ...]:
    """The state of a swap (root's alone: it may hold the webhook) and, with `guard`, its units."""
    body = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": plan.rig.head.name,
        "target": target,
        "original": original,
        "ours": ours,
        "guard": data.guard,
        "reapply": data.reapply,
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
    }
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"
    documents = (Document(LIBRARY_STATE_PATH, text, "0600"),)
    if not data.guard:
        return documents
    units = (
        Document(path, render_engine_files(path, library=target), "0644")
        for path in LIBRARY_UNIT_FILES
    )
    return (*documents, *units)


# What lands on a host to guard what gpu_limit set: the values, and the guard's units.

LIMIT_STATE_PATH = "/etc/rigbook/limit.json"
LIMIT_GUARD_TIMER = "rigbook-limit.timer"
LIMIT_UNIT_FILES = tuple(
    f"{UNITS_DIR}/{name}" for name in ("rigbook-limit.service", LIMIT_GUARD_TIMER)
)
LIMIT_FILES = ("/etc/rigbook", LIMIT_STATE_PATH, *LIMIT_UNIT_FILES)


class Told(Protocol):
    """Whom the guard tells: schema.keys.GpuLimitData."""

    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...


def limit_documents(
    plan: Plan, data: Told, container: str, values: Mapping[str, str], edits: Mapping[str, str]
) -> tuple[Document, ...]:
    """The guarded values and texts of one container (root's alone: it may hold the webhook), the
    units.
    """
    chart = plan.chart
    body = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": plan.rig.head.name,
        "kubectl": chart.kubectl,
        "kubeconfig": chart.kubeconfig,
        "namespace": chart.namespace,
        "deployment": chart.deployment,
        "container": container,
        "set": dict(values),
        "edit": dict(edits),
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
    }
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"
    what = f"{chart.namespace}/{chart.deployment}"
    units = (
        Document(path, render_engine_files(path, deployment=what), "0644")
        for path in LIMIT_UNIT_FILES
    )
    return (Document(LIMIT_STATE_PATH, text, "0600"), *units)
