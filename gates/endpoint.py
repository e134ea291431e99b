"""Doctor's findings about the endpoint: what it said, with what the nodes looked like meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from gates.core import Observed, Violation, deploy_command, per_node, require, violation
from gates.processes import engine_unit
from node.rules.text import ROOT_CAUSE
from schema.artifact import Probe
from schema.plan import Node, Plan
from schema.snapshot import NodeSnapshot, Unit

# What a line of an engine's log means, and what is done about it.
#
# tests/unit/gates/engine/signatures.yaml has a recorded log of each, with its source.


class Signature(NamedTuple):
    """A pattern of a line, its meaning, and the command or action (empty: the meaning says it)."""

    pattern: str
    meaning: str
    action: str = ""


_DOCTOR = "pyinfra INVENTORY deploys/doctor.py"
_SERVE = "pyinfra INVENTORY deploys/serve.py"
_RESTART = "pyinfra INVENTORY deploys/restart.py"
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
# Lowest layer first, as the doctor prints: the first that fits is the cause.
SIGNATURES: tuple[Signature, ...] = (
    # the GPU and its driver
    Signature(
        r"Illegal device id",
        "the GPU library inside the container does not fit its driver (A1)",
    ),
    Signature(
        r"driver/library version mismatch",
        "the driver's libraries were upgraded while its module ran (D12)",
        "reboot the node",
    ),
    Signature(
        r"uncorrectable ECC error",
        "the GPU's memory has an error that ECC cannot correct",
        _DOCTOR,
    ),
    Signature(
        r"unspecified launch failure|GPU is lost|fallen off the bus",
        "the GPU failed; the kernel's log has its Xid",
        _DOCTOR,
    ),
    Signature(
        r"[Ee]rror \(?802\b|system not yet initialized",
        "the NVSwitch fabric is not up: fabric manager does not run",
        "sudo systemctl enable --now nvidia-fabricmanager",
    ),
    Signature(
        r"[Ee]rror \(?803\b|unsupported display driver",
        "the CUDA library is not of the driver that runs: a compat folder of the image comes first",
        "take cuda-compat out of LD_LIBRARY_PATH, or upgrade the driver",
    ),
    Signature(
        r"[Ee]rror \(?804\b|forward compatibility was attempted",
        "the image's CUDA is newer than the driver, and this card has no forward compatibility",
        "upgrade the driver",
    ),
    Signature(
        r"driver version is insufficient|driver on your system is too old",
        "the driver is older than the engine's CUDA wants",
        "upgrade the driver, or take an older image",
    ),
    Signature(
        r"no kernel image is available",
        "the engine was built without code for this GPU",
        "take an image or a wheel for its compute capability",
    ),
    Signature(
        r"ptxas fatal\s*: Value 'sm_",
        "Triton's ptxas is older than this GPU",
        "set TRITON_PTXAS_PATH: /usr/local/cuda/bin/ptxas in the recipe's env",
    ),
    Signature(
        r"No CUDA GPUs are available|Failed to infer device type",
        "the engine sees no GPU: none was given to its container, or the driver is gone",
        _DOCTOR,
    ),
    # docker
    Signature(
        r"unknown or invalid runtime name: nvidia",
        "docker knows no runtime nvidia (D9)",
        _CONFIGURE,
    ),
    Signature(
        r"could not select device driver",
        "docker has nothing that serves --gpus",
        "sudo apt-get install nvidia-container-toolkit && sudo systemctl restart docker",
    ),
    Signature(
        r"unresolvable CDI devices",
        "docker knows no such CDI device: its spec is missing or stale (D13)",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    # memory
    Signature(
        r"less than desired GPU memory utilization|CUDA out of memory|Device \d+ OOM",
        "memory was short at its start: page cache of earlier loads, or somebody who holds "
        "it (C11, B2)",
        _DOCTOR,
    ),
    Signature(
        r"No available memory for the cache blocks",
        "the weights fill the engine's share: nothing is left for the KV cache",
        "raise gpu_memory_utilization in the recipe",
    ),
    Signature(
        r"KV cache is needed, which is larger|"
        r"maximum number of tokens that can be stored in KV cache",
        "one request of max_model_len does not fit the KV cache",
        "lower max_model_len or raise gpu_memory_utilization in the recipe",
    ),
    Signature(
        r"No space left on device",
        "a disk or /dev/shm is full",
        _DOCTOR,
    ),
    # the fabric
    Signature(
        r"EADDRINUSE|address already in use",
        "another process holds a port that it needs: an orphan, or a worker without "
        "--headless (C5, C10)",
        _RESTART,
    ),
    Signature(
        r"ibv_reg_\w*mr\w* failed with error Cannot allocate memory",
        "no rank can register memory for RDMA: a kernel that is known to be bad (D8), or "
        "NCCL_BUFFSIZE too large",
        _DOCTOR,
    ),
    Signature(
        r"ibv_modify_qp failed with (?:error|110|\d+).*(?:timed out|unreachable|No such)",
        "the two RDMA ports do not reach each other: another subnet, GID or cable (D11)",
        "pyinfra INVENTORY deploys/fabric.py",
    ),
    Signature(
        r"Got completion with (?:status|error)[ =]12",
        "RDMA got no answer of its peer: the GID index, the switch or the cable",
        "pyinfra INVENTORY deploys/fabric.py",
    ),
    Signature(
        r"[Nn]o socket interface found|no NCCL_SOCKET_IFNAME interface|"
        r"family \d+ is neither AF_INET",
        "NCCL_SOCKET_IFNAME names no interface of this node",
        _DOCTOR,
    ),
    Signature(
        r"FABRIC_STATE_OUT_OF_SYNC|NCCL error: unhandled cuda error",
        "NCCL met an error of CUDA, often NVLink's multicast",
        'set NCCL_NVLS_ENABLE: "0" in the recipe\'s env; else reboot the node',
    ),
    Signature(
        r"attaching to shared memory segment /dev/shm/nccl",
        "the ranks of one node do not share /dev/shm",
        "container.ipc: host, or a larger shm_size, in the recipe",
    ),
    Signature(
        r"NCCL error: unhandled system error",
        "NCCL met an error of the network or of /dev/shm; its WARN lines before it say which",
        "NCCL_DEBUG: WARN in the recipe's env",
    ),
    Signature(
        r"(?:closed|reset) by (?:remote )?peer|(?:send|recv)Bytes failed|gloo\S* .*timed out|"
        r"NCCL (?:error|communicator was aborted)|nccl(?:Remote|System|Internal)Error|"
        r"Watchdog caught collective|DistNetworkError|DistStoreError|DistBackendError",
        "it lost its peer",
    ),
    # the program
    Signature(
        r"(Unable to find|No such) image",
        "the image is not on this node",
    ),
    Signature(
        r"vllm: (command )?not found|vllm: No such file|\"vllm\": executable file not found",
        "the image or the venv has no `vllm` program any more (B3)",
    ),
    Signature(
        r"libcudart\.so\.\d+: cannot open shared object|libcublas\S*: cannot open",
        "vLLM and torch are of two CUDA versions",
        "install both from one index",
    ),
    Signature(
        r"undefined symbol: \S+",
        "vLLM was built for another torch",
        "install the torch that its wheel names",
    ),
    Signature(
        r"No such file or directory|Is a directory|not found in \$PATH",
        "a file that it starts is missing inside the container (C13)",
    ),
    # the model
    Signature(
        r"invalid magic characters|HeaderTooLarge|Error while deserializing header",
        "the weights have another format, or a download was cut off (A2)",
    ),
    Signature(
        r"gated repo|GatedRepoError|Repository Not Found",
        "the hub gives this model to known accounts only",
        "accept its terms, and name HF_TOKEN under secrets in the recipe",
    ),
    Signature(
        r"architectures \[.*\] (?:are not supported|failed to be inspected)|"
        r"does not recognize this architecture",
        "this vLLM does not know the model's architecture",
        "take a version that does",
    ),
    Signature(
        r"trust_remote_code=True\S{0,3} to (?:remove|allow)",
        "the model brings code of its own, which vLLM runs only on demand",
        "trust_remote_code: true in the recipe, once you have read that code",
    ),
    Signature(
        r"attention heads \(\d+\) must be divisible",
        "the model's heads cannot be split over so many ranks",
        "tensor_parallel_size in the recipe: a divisor of that number",
    ),
    Signature(
        r"User-specified max_model_len .* greater than the derived",
        "max_model_len is more than the model was made for",
        "lower max_model_len in the recipe",
    ),
    # what owners did to themselves
    Signature(
        r"w13.* referenced before assignment",
        "a baked patch was applied a second time (C15)",
    ),
    Signature(
        r"ShmRingBuffer",
        "VLLM_WORKER_MULTIPROC_METHOD=fork: self-inflicted, no fault of vLLM's code (C14)",
    ),
    Signature(
        r"InvalidCxxCompiler",
        "the image has no compiler and TORCHDYNAMO_DISABLE is not set: the first request kills it",
    ),
    Signature(
        r"unrecognized arguments|invalid .* value",
        "a flag that this vLLM does not know",
        _SERVE + " --dry",
    ),
    Signature(
        r"an illegal memory access was encountered|device-side assert",
        "a kernel of this version fails on this GPU, or the card does",
        _DOCTOR,
    ),
)


# What an engine's last words mean: exit statuses and log lines that incidents have taught us.

# Lines of starts that end well have the same words: what vLLM and NCCL only tell names no cause.
_TOLD = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |NCCL INFO |\[Gloo\] Rank \d+ is connected")


def from_log(lines: Iterable[str]) -> str | None:
    """The likely cause that the lines name, or None."""
    found = signature(lines)
    return found.meaning if found else None


def signature(lines: Iterable[str]) -> Signature | None:
    """The signature that the lines have, or None: the root cause's, where a line names one."""
    rows = [row for row in lines if not _TOLD.search(row)]
    texts = [*(row for row in rows if row.startswith(ROOT_CAUSE)), "\n".join(rows)]
    return next(
        (one for text in texts for one in SIGNATURES
         if re.search(one.pattern, text, re.IGNORECASE)),
        None,
    )  # fmt: skip


def action(unit: Unit) -> str:
    """What is done about the signature in a unit's log, with a `; ` behind it; empty: none."""
    found = signature(unit.errors)
    return f"{found.action}; " if found and found.action else ""


def from_exit(unit: Unit) -> str | None:
    """The likely cause that a unit's exit status names, or None."""
    if unit.exit_kind in ("killed", "dumped"):
        by_hand = " (out of memory, or somebody's kill -9)" if unit.exit_status == 9 else ""
        return f"signal {unit.exit_status} ended it{by_hand}"
    if not unit.exit_kind and unit.exit_status == 0:
        return None
    meanings = {
        0: "its engine ended with status 0, as vLLM does when one of its ranks has died",
        126: "what it starts cannot be run: a folder in the place of a file, or no x bit",
        127: "a file that it starts does not exist, on the host or inside the container (C13)",
        137: "it was killed with signal 9: out of memory, or somebody's kill -9",
        203: "the program of its ExecStart does not exist (C13)",
    }
    return meanings.get(unit.exit_status)


def cause_of(unit: Unit) -> str:
    """The likely cause of a unit's end, from its log, else from its exit status."""
    return (
        from_log(unit.errors) or from_exit(unit) or "its log says why: journalctl -u " + unit.name
    )


def last_exit(unit: Unit) -> str:
    """How the unit's main process ended, for a line of evidence."""
    if not unit.exit_kind and unit.exit_status == 0:
        return "none of this start"
    kind = unit.exit_kind or "exited"
    return f"{kind} {'by signal' if kind != 'exited' else 'with status'} {unit.exit_status}"


# Doctor's findings of what the watch saw: an engine that is silent, and restarts that are over.

# The watch looks once a minute where nobody said otherwise; what it saw before says nothing of now.
RECENT_S = 900.0


@per_node
def wedged_silent(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Requests wait, and no step of the engine ends (D5: /health said 200 for 12 days)."""
    seen = require(snapshot.watch, "watch")
    if seen is None or seen.silent is None:
        return
    age = snapshot.identity.clock_unix_s - seen.looked_unix_s
    if age > RECENT_S:
        return
    yield violation(
        "wedged-silent",
        node.name,
        f"the engine of {node.name} is silent: requests wait, and no token is made",
        evidence=f"{seen.silent}, seen {max(0.0, age):.0f} s ago; {seen.evidence or 'no evidence'}",
        remedy=f"{_anew(plan)} (all nodes as one)",
    )


@per_node
def stood_down(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What comes back after three restarts in six hours is not mended by a fourth (D5)."""
    seen = require(snapshot.watch, "watch")
    if seen is None or seen.stood_down_unix_s is None:
        return
    since = datetime.fromtimestamp(seen.stood_down_unix_s, timezone.utc)
    yield violation(
        "stood-down",
        node.name,
        f"the watch of {node.name} restarts its engine no more",
        evidence=f"{len(seen.restarts)} restarts for silence in six hours; stood down since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC; {seen.evidence or 'no evidence'}",
        remedy=f"mend what the evidence shows, then {_anew(plan)}: an answer ends it",
    )


def _anew(plan: Plan) -> str:
    """What starts the engine anew; on a Kubernetes rig serve does, by a rollout."""
    return deploy_command(plan, "serve" if plan.runtime == "deployment" else "restart")


GATES = (wedged_silent, stood_down)


def answered(plan: Plan, probe: Probe, before: Observed, after: Observed) -> list[Violation]:
    """The finding about a probe that got no answer, or none here; none for one that did.

    `before` are the nodes when the probe was asked, `after` a look when it had failed: an engine
    that dies of its first request shows only there.
    """
    head = plan.rig.head.name
    if probe.not_here:
        return [
            violation(
                "no-way-here",
                head,
                f"the engine answers on {head}, and not for this machine",
                evidence=f"on {head}: {probe.detail}; {probe.not_here}",
                remedy="the ssh -N -L of the evidence, or open the port; after HTTP 401 or 403: "
                "read -rs RIGBOOK_API_KEY; export RIGBOOK_API_KEY",
            )
        ]
    if probe.failure is None:
        return []
    said = f"{probe.detail}; /health {probe.health or 'silent'}, /v1/models {_models(probe)}"
    if probe.failure == "timeout" and (probe.generated or 0) > 0:
        return [
            violation(
                "answer-slow",
                head,
                f"the engine works, but had no time for a question in {probe.seconds:.0f} s",
                evidence=f"{said}; it made {probe.generated:.0f} tokens for others meanwhile",
                remedy=f"{deploy_command(plan, 'verify')} (waits longer)",
            )
        ]
    if probe.models == 200 and probe.failure in ("status", "disconnected", "empty"):
        died = [text for text in (_died(n, before, after) for n in before) if text is not None]
        return [
            violation(
                "cannot-answer",
                head,
                f"the engine lists its model, and cannot answer: {_how(probe)}",
                evidence="; ".join((said, *(text for text, _ in died))),
                remedy=deploy_command(plan, "restart"),
                cause=next((cause for _, cause in died), ""),
            )
        ]
    return [
        violation(
            "no-answer",
            head,
            f"{plan.recipe.served_model_name} gives no real answer at {probe.url}",
            evidence=said,
            remedy=_mend(plan, probe),
        )
    ]


def _models(probe: Probe) -> str:
    names = f" ({', '.join(probe.served)})" if probe.served else ""
    return f"{probe.models or 'silent'}{names}"


def _how(probe: Probe) -> str:
    if probe.failure == "status":
        return f"HTTP {probe.status} to a chat"
    return "the line was cut" if probe.failure == "disconnected" else "an empty completion"


def _died(name: str, before: Observed, after: Observed) -> tuple[str, str] | None:
    """(what became of a node's engine during the probe, its likely cause), None when it lives."""
    one, other = before.get(name), after.get(name)
    if not isinstance(one, NodeSnapshot) or not isinstance(other, NodeSnapshot):
        return None
    then, now = engine_unit(one), engine_unit(other)
    if then is None or now is None:
        return None
    same = (then.main_pid, then.restarts, then.sub_state) == (
        now.main_pid,
        now.restarts,
        now.sub_state,
    )
    if same:
        return None
    text = (
        f"{now.name} on {name} is {now.active_state}/{now.sub_state} after the question, last "
        f"exit: {last_exit(now)}; log: {'; '.join(now.errors[-2:]) or now.last_log_line or 'none'}"
    )
    return text, cause_of(now)


def _mend(plan: Plan, probe: Probe) -> str:
    if probe.failure == "timeout":
        restart = deploy_command(plan, "restart")
        return f"{deploy_command(plan, 'verify')} (waits longer); then {restart}"
    return f"mend the findings above first, then: {deploy_command(plan, 'serve')}"
