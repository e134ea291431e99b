"""All gates, ranked by likely cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from gates import endpoint, health, host, kernel, processes, recipe, unit
from gates.artifact import own_venv
from gates.core import Gate, Layer, Observed, Violation, gib
from gates.endpoint import answered
from gates.gate_sets import SERVING, check
from gates.processes import engine_unit, is_own, own_container
from gates.recipe import running_profile
from node.rules.secret import masked_line
from node.rules.text import ROOT_CAUSE
from schema.artifact import Probe
from schema.host import KernelSnapshot
from schema.plan import Node, Plan
from schema.snapshot import NodeSnapshot, Unreadable

# All findings of a rig, ordered by layer and likely cause.

# What a cause is, and the groups of codes that many causes explain.

# What the operator sees when the engine does not serve.
SILENT = ("answer-slow", "cannot-answer", "no-answer")
DOWN = ("crash-loop", "engine-down")
UNSERVED = ("wedged-pair", *SILENT)
GHOSTS = ("unit-ghost", "script-ghost", "drop-in-no-reset", "docker-unreadable")


@dataclass(frozen=True)
class Cause:
    """A code's likely cause in a line, and the codes that it explains."""

    text: str
    here: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()
    until: tuple[str, ...] = ()


STOPS = {"here": DOWN, "anywhere": UNSERVED}
LOADS = {"here": DOWN, "anywhere": UNSERVED, "until": GHOSTS}


# The causes that lie in the machine itself: GPUs, links, disks, kernel (gates/health).

OF_MACHINE: dict[str, Cause] = {
    "kernel-crash": Cause(
        "a fault of the kernel, of a driver or of the memory; its lines name which",
        here=("task-hung", *DOWN),
        anywhere=UNSERVED,
    ),
    "machine-check": Cause("memory, a processor or its power that fails", here=("kernel-crash",)),
    "task-hung": Cause("a driver or a disk that does not answer the kernel", **STOPS),
    "pcie-errors": Cause(
        "a riser, a slot or a card with a bad contact, or a slot that is too fast for it",
        here=("pcie-link", "gpu-lost", "nic-errors", "rdma-rate", *DOWN),
        anywhere=UNSERVED,
    ),
    "pcie-link": Cause(
        "a card that is not seated well, a riser, or a BIOS's setting of the slot",
        anywhere=("answer-slow",),
    ),
    "gpu-lost": Cause(
        "a card or its power that fails; a hang of its firmware",
        here=("driver-missing", "gpu-xid", "memory-short", *DOWN),
        anywhere=UNSERVED,
    ),
    "driver-version": Cause("another version than the lists have, or lists that are old"),
    "driver-plan": Cause("packages of others that depend on the driver, or a half-moved archive"),
    "driver-dpkg": Cause("an apt that was cut off, or one that is at work"),
    "driver-old-gone": Cause("the archive deletes a release once the next is there"),
    "driver-users": Cause("a desktop, or programs of others on the GPU"),
    "driver-headers": Cause("a kernel that was installed without its headers"),
    "driver-unsigned": Cause("Secure Boot, and a key that nobody has enrolled"),
    "driver-room": Cause("old packages and backups"),
    "driver-library": Cause(
        "apt upgraded the driver's libraries while the module ran (D12)",
        here=("driver-missing", "cdi-stale", *DOWN),
        anywhere=UNSERVED,
    ),
    "gpu-xid": Cause("the Xid tells it", **STOPS),
    "gpu-memory-errors": Cause("memory of the card that wears out", here=("gpu-xid", *DOWN)),
    "gpu-throttled": Cause("heat, or power that the card does not get", anywhere=("answer-slow",)),
    "gpu-hot": Cause("fans, dust, or a warm room", here=("gpu-throttled",)),
    "persistence-off": Cause("nvidia-persistenced is not installed or not enabled"),
    "nic-errors": Cause(
        "a cable, a transceiver or a port that goes bad; or a peer that has just rebooted",
        here=("bond-slave-down",),
        anywhere=("fabric-ping", *UNSERVED),
    ),
    "nic-firmware": Cause("one node was updated, the other not"),
    "fabric-volatile": Cause("it was set by hand, with `ip addr add`"),
    "disk-errors": Cause(
        "a disk that dies, or its cable", here=("disk-read-only", "journal-broken", *DOWN)
    ),
    "disk-read-only": Cause(
        "its kernel met an error and stopped writing",
        here=("journal-broken", "change-open", *DOWN),
        anywhere=UNSERVED,
    ),
    "disk-wear": Cause("it is worn out or fails", here=("disk-errors",)),
    "cdi-stale": Cause("the driver was upgraded, and the spec not made anew (D13)", **STOPS),
}


# The declared table of causes: one row a code, lowest layer first (gates/doctor.py reads
# it).

_UNKNOWN = "the host could not be asked; unknown is not healthy"
# Sections of a snapshot whose silence explains nothing but itself.
_SECTIONS = (
    "memory", "shm", "engine-processes", "ports", "connections", "network", "disks", "journal",
    "image-files", "files", "weights", "sysctls", "kernel", "driver", "growth", "cron", "health",
    "host", "backups",
)  # fmt: skip

CAUSES: dict[str, Cause] = {
    **{f"{section}-unreadable": Cause(_UNKNOWN) for section in _SECTIONS},
    **OF_MACHINE,
    "nodes-reachable": Cause(
        "the node is off, hangs, or has lost its LAN link",
        anywhere=("fabric-down", "fabric-route", "fabric-ping", *DOWN, *UNSERVED),
    ),
    "other-rig": Cause("the inventory of another rig was named, or a node has moved"),
    "clock-skew": Cause("time synchronisation is off, or was never set up"),
    "clock-jump": Cause("the clock was set later, or its battery is empty", here=("clock-skew",)),
    "rebooted-midway": Cause(
        "power cut or reboot in mid-change; the operator's run did not survive it",
        here=("change-open", "change-inconsistent"),
    ),
    "rebooted-unasked": Cause(
        "a hang that the watchdog ended, a panic, or a power cut; the last words tell which (D6)",
        here=("rebooted-midway",),
    ),
    "reboot-loop": Cause(
        "hardware, firmware or a driver that fails again and again (D6)",
        here=("rebooted-midway", *DOWN),
        anywhere=UNSERVED,
    ),
    "host-differs": Cause("set by hand, or by an update, since host.py ran"),
    "sysctl-differs": Cause("set by hand on one node only"),
    "hardware-unreadable": Cause("the host did not say what its board and its cards are"),
    "hands-needed": Cause("nobody has said that this board comes back by itself"),
    "wol-card": Cause("the LAN address moved, or the card was named wrongly"),
    "wol-unarmed": Cause("the driver's default, or an update, left Wake-on-LAN off"),
    "boot-unknown": Cause("a boot loader or a menu that rigbook cannot read"),
    "boot-no-kernel": Cause("a kernel package that was removed, or cut off by a full /boot"),
    "boot-no-driver": Cause(
        "apt staged a newer kernel, and no driver module was built for it (B4)",
        here=("pin-gone",),
    ),
    "kernel-known-bad": Cause(
        "a routine upgrade brought a kernel on which the engine cannot start", **STOPS
    ),
    "boot-room": Cause("old kernels that nobody removed"),
    "boot-sticky": Cause("GRUB writes on plain partitions only"),
    "grubenv-bad": Cause("a power cut while grub-editenv wrote it, or never made"),
    "not-pinned": Cause("never pinned, or the default was changed since"),
    "pin-entry": Cause("another name than the installed kernel's, or a menu that was edited"),
    "pin-gone": Cause("the pinned kernel's package was removed, or its title was translated"),
    "pin-no-driver": Cause("no module was built for it, or the driver was updated alone"),
    "driver-missing": Cause(
        "a new kernel without its NVIDIA module, or a driver that hangs (B4)",
        here=("memory-short", *DOWN),
        anywhere=("driver-mismatch", *UNSERVED),
    ),
    "driver-known-bad": Cause("an upgrade brought a driver that fails with this engine", **STOPS),
    "driver-mismatch": Cause("one node was updated, the other not", anywhere=(*DOWN, *UNSERVED)),
    "driver-stand-in": Cause("a rehearsal host"),
    "memory-short": Cause(
        "other processes hold it, or page cache that cannot be dropped; the evidence tells which",
        **LOADS,
    ),
    "page-cache": Cause("page cache of earlier loads: reclaimable, not in use (C11)", **LOADS),
    "shm-stale": Cause(
        "engines that were killed and left their segments behind (C12)", here=("memory-short",)
    ),
    "memory-kill": Cause("engine and host wanted more memory than there is (D7)", **LOADS),
    "guard-missing": Cause("it comes with no installation"),
    "guard-tight": Cause("gpu_memory_utilization leaves the host too little"),
    "engine-orphan": Cause(
        "its launcher died or was killed -9, and left it behind (C6, C10, B2)",
        here=("memory-short", "port-taken", *DOWN),
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "port-taken": Cause(
        "something else was started there, or an engine without --headless (C5)", **LOADS
    ),
    "foreign-engine": Cause(
        "relaunched by hand, or a former setup that still starts by itself (C14)",
        here=("memory-short", "engine-orphan", "port-taken", *DOWN),
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "fabric-down": Cause(
        "cable, switch, or a bond that comes late at boot",
        here=("fabric-address", "fabric-mtu", "bond-slave-down", "port-taken"),
        anywhere=("fabric-route", "fabric-ping", *DOWN, *UNSERVED),
    ),
    "fabric-address": Cause(
        "the network configuration that sets it was changed, or came late at boot",
        anywhere=("fabric-route", "fabric-ping", *DOWN, *UNSERVED),
    ),
    "fabric-mtu": Cause(
        "set by hand once, and lost at the last boot", anywhere=("fabric-ping", "wedged-pair")
    ),
    "fabric-route": Cause(
        "the fabric's subnet is missing, so traffic takes the LAN",
        here=("fabric-ping",),
        anywhere=(*DOWN, *UNSERVED),
    ),
    "fabric-ping": Cause(
        "a smaller MTU somewhere on the way, or a firewall", anywhere=(*DOWN, *UNSERVED)
    ),
    "rdma-missing": Cause(
        "the cable is in another port, or the driver's RDMA part is not there",
        anywhere=("rdma-port", *SILENT),
    ),
    "rdma-port": Cause("the recipe's list is not what this node has cabled"),
    "rdma-gid": Cause("an address was set anew, and its GID took another row", **STOPS),
    "rdma-address": Cause("a twin or another cable that got no address of its own", **STOPS),
    "rdma-rate": Cause("another cable, or one that was plugged in while the node ran"),
    "bond-slave-down": Cause("one cable or port of the bond"),
    "transfer-port": Cause("another transfer, or another program on that port"),
    "transfer-way": Cause("a firewall on the giving node, or a cable"),
    "transfer-room": Cause("old images, logs or downloads fill the disk"),
    "disk-room": Cause("images and caches that nobody prunes", here=("change-open", *DOWN)),
    "growth-large": Cause("large backups, or what restores and images displaced"),
    "backup-one-disk": Cause("a copy that nobody has made yet, or of an older backup"),
    "journal-broken": Cause("a disk that lost a write, or an edit by hand"),
    "lock-held": Cause(
        "another operator, or another run of yours, is at work",
        here=("change-open", "unit-not-reloaded", "drift", *DOWN),
        anywhere=UNSERVED,
    ),
    "change-open": Cause(
        "a run was cut off, or is still at work: look at its age",
        here=("unit-not-reloaded", "unit-disabled", "drift", *DOWN),
        anywhere=UNSERVED,
    ),
    "change-inconsistent": Cause(
        "an undo could not put everything back",
        here=("unit-not-reloaded", "unit-disabled", "drift", *DOWN),
        anywhere=UNSERVED,
    ),
    "docker-unreadable": Cause(
        "the docker daemon is down, hangs, or is not installed (systemctl status docker)",
        here=(
            "image-files-unreadable",
            "image-missing",
            "memory-short",
            "page-cache",
            "port-taken",
            "foreign-engine",
            "drift",
            *DOWN,
        ),
        anywhere=("image-differs", *UNSERVED),
    ),
    "docker-gpus": Cause(
        "NVIDIA's toolkit is not installed, not configured for docker, or has no CDI spec",
        here=DOWN,
        anywhere=UNSERVED,
    ),
    "jit-cache-owner": Cause("the image names a user, or its folder was made by hand", here=DOWN),
    "jit-cache-cold": Cause("a first start, a new image, or a folder that was emptied"),
    "image-missing": Cause(
        "never pulled or moved here, or pruned",
        here=("image-files-unreadable", "patch-missing", *DOWN),
        anywhere=("image-differs", *UNSERVED),
    ),
    "image-differs": Cause("a pull or a rebuild on one node only", anywhere=(*DOWN, *UNSERVED)),
    "image-arch": Cause("the image of another machine", **STOPS),
    "patch-missing": Cause("the image was built or pulled without it", **LOADS),
    "patch-doubled": Cause("a patch that is baked in was applied again (C15)", **LOADS),
    "restart-policy": Cause(
        "docker update --restart, or a container of a former setup",
        here=("foreign-engine",),
        anywhere=("wedged-pair",),
    ),
    "venvs-unreadable": Cause(_UNKNOWN),
    "venv-missing": Cause(
        "the folder was moved or removed, or the link to it was not put back",
        here=("script-ghost", "patch-unknown", *DOWN),
        anywhere=UNSERVED,
    ),
    "venv-python-missing": Cause(
        "the Python of the system was upgraded or removed, and the venv's links lead nowhere",
        here=("venv-entry-missing", "script-ghost", *DOWN),
        anywhere=UNSERVED,
    ),
    "venv-entry-missing": Cause(
        "pip uninstall took it, and what was restored brought the package alone (B3)",
        here=("script-ghost", *DOWN),
        anywhere=UNSERVED,
    ),
    "venv-version": Cause("an upgrade or a downgrade by hand", **STOPS),
    "venv-user": Cause("the recipe names a user of another machine", **STOPS),
    "remove-ipc": Cause(
        "the default of systemd-logind, and an engine that is not root's",
        **STOPS,
    ),
    "units-unreadable": Cause(_UNKNOWN, here=("engine-down",)),
    "unit-ghost": Cause(
        "the file lived only in a container's layer, or was moved or deleted (C13)", **STOPS
    ),
    "other-recipe": Cause("serve was told --data recipe=…, and this run was not"),
    "drop-in-no-reset": Cause(
        "a drop-in that replaces ExecStart= needs an empty ExecStart= first",
        **STOPS,
    ),
    "unit-not-reloaded": Cause(
        "the unit or a drop-in was edited without systemctl daemon-reload",
        here=("unit-ghost", "drop-in-no-reset"),
    ),
    "unit-disabled": Cause("systemctl disable, or a unit that was never enabled"),
    "second-unit": Cause(
        "units of a former setup that were not disabled",
        here=("foreign-engine", "engine-orphan", "port-taken"),
        anywhere=("wedged-pair",),
    ),
    "second-supervisor": Cause(
        "a crontab or a Deployment of a former setup",
        here=("foreign-engine", "engine-orphan", "port-taken"),
        anywhere=("wedged-pair",),
    ),
    "script-ghost": Cause(
        "the script lives only in a container's writable layer, which a reboot or a new container "
        "took away (C13)",
        **STOPS,
    ),
    "crash-loop": Cause(
        "the engine dies at each start; its log says why", here=("engine-down",), anywhere=UNSERVED
    ),
    "engine-down": Cause("nothing runs here", anywhere=UNSERVED),
    "wedged-pair": Cause(
        "one rank died or came back alone; the other waits for the one that is gone",
        anywhere=SILENT,
    ),
    "watch-unreadable": Cause(_UNKNOWN),
    "wedged-silent": Cause(
        "a rank, the fabric or a kernel of the GPU hangs while every process lives (D5)",
        here=("stood-down",),
        anywhere=SILENT,
    ),
    "stood-down": Cause("the same wedge came back after each restart (D5)"),
    "weights-incomplete": Cause("a run of weights was cut off in its last second", **LOADS),
    "weights-missing": Cause("never downloaded here, or the path has changed", **LOADS),
    "weights-differ": Cause("a download on one node only, or one that was cut off", **LOADS),
    "weights-cut": Cause("a download or a copy that broke off", **LOADS),
    "weights-magic": Cause("another format, a git-lfs pointer, or a download cut off", **LOADS),
    "weights-shards-missing": Cause("a download that was cut off", **LOADS),
    "weights-mount": Cause("the recipe mounts a snapshot without the blobs beside it", **LOADS),
    "version-broken": Cause(
        "the version was never made to work on this hardware (B1)",
        **LOADS,
    ),
    "version-unknown": Cause("nobody has reported this version on such a rig"),
    "torch-cpu": Cause(
        "torch was resolved from an index without CUDA wheels (C1)",
        **LOADS,
    ),
    "torch-variant": Cause(
        "torch was resolved from another index than the last time",
        **LOADS,
    ),
    "wheel-missing": Cause("the index or the wheel folder has no such wheel for this Python"),
    "pip-report-unreadable": Cause(_UNKNOWN),
    "old-wheel-missing": Cause("nightlies are rotated out of their server (B5)"),
    "patch-drifted": Cause(
        "edited by hand, or another version of the engine",
        **LOADS,
    ),
    "patch-unknown": Cause("the file moved with another version, or the path is wrong"),
    "module-missing": Cause(
        "the build left it out, or cloned without its submodules (C2)",
        **LOADS,
    ),
    "cluster-unreadable": Cause("kubectl is not there, may not read, or the API is down"),
    "pod-stuck": Cause("the container's own last lines say why"),
    "model-file": Cause(
        "the other loader's format, or a download that was cut off (A2)", here=("pod-stuck",)
    ),
    "gpu-limit": Cause(
        "the platform's `no limit` is 0m, which HAMi-core reads as 0 bytes (A3)",
        here=("pod-stuck", "gpu-limit-short"),
    ),
    "gpu-limit-short": Cause("the limit was guessed, not computed (A5)", here=("pod-stuck",)),
    "gpu-limit-drift": Cause(
        "the chart was deployed again, with its own template",
        here=("pod-stuck", "gpu-limit", "gpu-limit-short"),
    ),
    "libvgpu-unreadable": Cause(_UNKNOWN),
    "libvgpu-target": Cause("several versions lie there, and nothing says which one is mounted"),
    "libvgpu-preload": Cause("edited by hand, or left by a former setup"),
    "libvgpu-other": Cause("the plugin was updated and brings another library (A6)"),
    "libvgpu-candidate": Cause("built for another machine, or a copy that was cut off"),
    "libvgpu-symbols": Cause("built with fewer options than the plugin's own (A1)"),
    "libvgpu-drift": Cause(
        "the plugin's pod was restarted or updated and copied its own back (A6)",
        here=("libvgpu-old-mapped", "pod-stuck"),
    ),
    "libvgpu-old-mapped": Cause("started before the swap; a mapped library stays what it was"),
    "forbidden-env": Cause("set by hand at a relaunch (C14)", **LOADS),
    "secret-missing": Cause("the secret was never put there, or this shell does not have it"),
    "hca-two-ports": Cause("two ports are named instead of the twins of one"),
    "weights-denied": Cause("they belong to another user, and are not for all to read"),
    "arguments-refused": Cause("a flag of another version of vLLM, or a value that it has not"),
    "arguments-unchecked": Cause("this vLLM keeps its parser elsewhere, or needs its GPU for it"),
    "enforce-eager": Cause("a workaround for a graph crash that stayed"),
    "image-latest": Cause("the recipe was written before the digest was known"),
    "privileged": Cause("the recipe was taken over as it was"),
    "worker-not-headless": Cause(
        "relaunched by hand with the head's flags (C5)",
        here=DOWN,
        anywhere=("port-taken", *UNSERVED),
        until=GHOSTS,
    ),
    "json-quotes-lost": Cause("nested shells (ssh, docker exec, bash -c) ate the quotes (C7)"),
    "drift": Cause(
        "changed by hand since it was served, or served with other data",
        here=("crash-loop",),
        anywhere=("cannot-answer",),
        until=GHOSTS,
    ),
    "answer-slow": Cause("busy with other clients"),
    "no-way-here": Cause("a jump host, a firewall or another key stands between"),
    "cannot-answer": Cause(
        "the first request reaches what the start did not: a kernel build, a lost rank",
        anywhere=("no-answer",),
    ),
    "no-answer": Cause("nobody serves there, or it hangs"),
    "gate-error": Cause("a fault of rigbook's own"),
}


# Which finding explains which: the likely cause of each code, and what to ignore because of it.
#
# A cause explains findings of its own node (`here`) and of any node (`anywhere`). `until` are
# codes
# of the same node in whose presence it does not explain that nothing is served: an engine whose
# program is missing never got as far as its memory or its flags.


@dataclass(frozen=True)
class Finding(Violation):
    """A violation with what it explains: `code@node` of each, or `code` for one of the rig."""

    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """How other findings name this one."""
        return key_of(self)


def key_of(violation: Violation) -> str:
    """`code@node`, or the code alone for a finding of the whole rig."""
    return f"{violation.code}@{violation.node}" if violation.node else violation.code


def explain(findings: Sequence[Violation], ranks: Mapping[str, int] | None = None) -> list[Finding]:
    """The findings with causes and explanations, the likeliest cause first.

    Order: what blocks and what explains a block, then the other warnings; in each, lowest layer
    first, then by the nodes' ranks, and never an effect before its cause.
    """
    found = list(dict.fromkeys(findings))
    effects = {v: [other for other in found if _explains(v, other, found)] for v in found}
    order = ranks or {}

    def tier(violation: Violation) -> bool:
        blocks = (violation, *effects[violation])
        return not any(one.severity == "block" for one in blocks)

    def place(violation: Violation) -> tuple[bool, int, bool, int, str, str]:
        rank = order.get(violation.node or "", -1)
        warns = violation.severity != "block"
        return tier(violation), violation.layer, warns, rank, violation.node or "", violation.code

    ranked = sorted(found, key=place)
    causes = {v: [other for other in ranked if v in effects[other]] for v in found}
    done: dict[Violation, None] = {}
    for violation in ranked:
        _after_causes(violation, causes, done)
    return [_finding(v, effects[v], causes[v]) for v in done]


def _after_causes(
    violation: Violation, causes: Mapping[Violation, list[Violation]], done: dict[Violation, None]
) -> None:
    """Puts a finding behind everything that explains it; the table has no circle (a test)."""
    if violation in done:
        return
    for cause in causes[violation]:
        _after_causes(cause, causes, done)
    done[violation] = None


def _explains(cause: Violation, effect: Violation, found: Iterable[Violation]) -> bool:
    what = CAUSES[cause.code]
    if cause is effect or cause.code == effect.code:
        return False
    here = cause.node is None or cause.node == effect.node
    if effect.code not in what.anywhere and not (here and effect.code in what.here):
        return False
    if effect.code not in (*DOWN, *UNSERVED):
        return True
    return not any(v.code in what.until and v.node == cause.node for v in found)


def _finding(
    violation: Violation, effects: Sequence[Violation], causes: Sequence[Violation]
) -> Finding:
    values = {field.name: getattr(violation, field.name) for field in fields(Violation)}
    values["cause"] = violation.cause or CAUSES[violation.code].text
    return Finding(
        **values,
        explains=tuple(dict.fromkeys(map(key_of, effects))),
        explained_by=tuple(dict.fromkeys(map(key_of, causes))),
    )


# Lines about a node that are no findings: what runs there, and what was tried last.

# What went back longer ago is an old story; the journal has it.
RECENT_S = 86400.0
MOST = 400


def went_back_lines(observed: Observed) -> list[str]:
    """For each node whose newest change was taken back within a day: which, and why.

    The engine that serves again says nothing of the start that failed.
    """
    lines = []
    for name, snapshot in observed.items():
        if isinstance(snapshot, Unreadable) or isinstance(snapshot.journal, Unreadable):
            continue
        last = next(iter(snapshot.journal.changes), None)
        if last is None or last.status != "ROLLED_BACK" or not last.reason:
            continue
        age = snapshot.identity.clock_unix_s - (last.closed_unix_s or last.opened_unix_s)
        if age < RECENT_S:
            reason = " ".join(last.reason.split())
            cause = reason[reason.find(ROOT_CAUSE) :] if ROOT_CAUSE in reason else reason
            lines.append(
                f"{name}: {last.deploy} {last.id} was taken back: {masked_line(cause)[:MOST]}"
            )
    return lines


def healthy_line(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str:
    """`lab1: head of lab, tiny (balanced), up 12 min, pids 910 955, 4.40 GiB, image …`."""
    profile = running_profile(plan, node, snapshot)
    parts = [f"{node.name}: {node.role}, rank {node.rank}", f"{plan.recipe.name} ({profile})"]
    unit, container = engine_unit(snapshot), own_container(snapshot)
    if unit is not None and unit.since_unix_s is not None:
        minutes = (snapshot.identity.clock_unix_s - unit.since_unix_s) / 60
        parts.append(f"{unit.active_state} for {minutes:.0f} min, {unit.restarts} restarts")
    if not isinstance(snapshot.engine_processes, Unreadable):
        own = [process for process in snapshot.engine_processes if is_own(snapshot, process)]
        size = sum(process.rss for process in own)
        parts.append(f"{len(own)} processes of {gib(size)} (pid {own[0].pid if own else 'none'})")
    venv = own_venv(plan, node, snapshot)
    if venv is not None:
        parts.append(f"venv {venv.target}, vllm {', '.join(venv.versions.get('vllm', ()))}")
    if container is not None:
        parts.append(f"image {container.image} {container.image_id.removeprefix('sha256:')[:12]}")
    return ", ".join(parts)


# Everything that the doctor asks beyond the serving gates: what serve mends does not block it.

DOCTOR: tuple[Gate, ...] = (
    *health.PART_GATES,
    *health.GPU_HEALTH_GATES,
    *health.LINK_GATES,
    *health.HOST_HEALTH_GATES,
    *host.CLOCK_GATES,
    *processes.FOREIGN_ENGINE_GATES,
    *unit.SUPERVISION_GATES,
    *unit.LAUNCH_SCRIPT_GATES,
    *unit.CRASH_LOOP_GATES,
    *processes.PEER_GATES,
    *endpoint.GATES,
    *recipe.DRIFT_GATES,
)


def examine(
    plan: Plan,
    observed: Observed,
    probe: Probe | None = None,
    after: Observed | None = None,
    more: Sequence[Violation] = (),
    hands: Sequence[Gate] = (),
) -> list[Finding]:
    """All findings about a rig, the likeliest cause first.

    `probe` None: the endpoint was not asked. `after`: the nodes after a probe that failed. `more`:
    what was found in files that no snapshot holds (patches, the table of versions). `hands`:
    gates with tables of the catalog: gates/firmware.py's, gates/known_bad.py's,
    gates/health.py's.
    """
    found = [*check(plan, observed, (*SERVING, *DOCTOR)), *more]
    if any(isinstance(snapshot, KernelSnapshot) for snapshot in observed.values()):
        found += check(plan, observed, [kernel.as_warning(gate) for gate in kernel.BOOT])
    found += check(plan, observed, hands)
    if probe is not None:
        found += answered(plan, probe, observed, after or observed)
    ranks = {node.name: node.rank for node in plan.rig.nodes}
    return explain(found, ranks)


# The strip of a rig: what the doctor found in each layer of each node. Pure.

# The worst last. `ok`: the doctor asked, and found nothing.
StripState = Literal["ok", "warn", "unknown", "block"]
WORST: tuple[StripState, ...] = ("ok", "warn", "unknown", "block")
Strip = dict[Layer, StripState]


def state_of(finding: Violation) -> StripState:
    """A finding's state: what could not be read is unknown, whether it blocks or not."""
    return "unknown" if finding.unknown else finding.severity


def strips(
    plan: Plan, observed: Observed, findings: Sequence[Violation], probed: bool
) -> dict[str, Strip]:
    """The layers of each node, lowest first, with the worst that was found there.

    A finding of the whole rig counts for every node. The endpoint is a layer of the head, if it was
    asked (`probed`). Of a node that did not answer nothing is known but that.
    """
    made = {}
    for node in plan.rig.nodes:
        seen = observed.get(node.name)
        silent = seen is None or isinstance(seen, Unreadable)
        strip: Strip = {}
        for layer in Layer:
            if layer is Layer.ENDPOINT and not (probed and node.name == plan.rig.head.name):
                continue
            here: list[StripState] = [
                state_of(finding)
                for finding in findings
                if finding.layer is layer and finding.node in (None, node.name)
            ]
            here.append("unknown" if silent and layer is not Layer.ENDPOINT else "ok")
            strip[layer] = max(here, key=WORST.index)
        made[node.name] = strip
    return made
