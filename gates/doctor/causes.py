"""The declared table of causes: one row a code, lowest layer first (gates/doctor/rank.py reads
it).
"""

from __future__ import annotations

from gates.doctor.artifact_causes import ARTIFACT_CAUSES
from gates.doctor.cause import DOWN, GHOSTS, SILENT, UNSERVED, Cause
from gates.doctor.clustercauses import CLUSTER
from gates.doctor.explaining_boot import BOOT_CAUSES
from gates.doctor.venvcauses import VENV_CAUSES

_UNKNOWN = "the host could not be asked; unknown is not healthy"
_STOPS = {"here": DOWN, "anywhere": UNSERVED}
_LOADS = {"here": DOWN, "anywhere": UNSERVED, "until": GHOSTS}
# Sections of a snapshot whose silence explains nothing but itself.
_SECTIONS = (
    "memory", "shm", "engine-processes", "ports", "connections", "network", "disks", "journal",
    "image-files", "files", "weights", "sysctls", "kernel",
)  # fmt: skip

CAUSES: dict[str, Cause] = {
    **{f"{section}-unreadable": Cause(_UNKNOWN) for section in _SECTIONS},
    "nodes-reachable": Cause(
        "the node is off, hangs, or has lost its LAN link",
        anywhere=("fabric-down", "fabric-route", "fabric-ping", *DOWN, *UNSERVED),
    ),
    "clock-skew": Cause("time synchronisation is off, or was never set up"),
    "clock-jump": Cause("the clock was set later, or its battery is empty", here=("clock-skew",)),
    "rebooted-midway": Cause(
        "power cut or reboot in mid-change; the operator's run did not survive it",
        here=("change-open", "change-inconsistent"),
    ),
    "sysctl-differs": Cause("set by hand on one node only"),
    **BOOT_CAUSES,
    "driver-missing": Cause(
        "a new kernel without its NVIDIA module, or a driver that hangs (B4)",
        here=("memory-short", *DOWN),
        anywhere=("driver-mismatch", *UNSERVED),
    ),
    "driver-mismatch": Cause("one node was updated, the other not", anywhere=(*DOWN, *UNSERVED)),
    "driver-stand-in": Cause("a rehearsal host"),
    "memory-short": Cause(
        "other processes hold it, or page cache that cannot be dropped; the evidence tells which",
        **_LOADS,
    ),
    "page-cache": Cause("page cache of earlier loads: reclaimable, not in use (C11)", **_LOADS),
    "shm-stale": Cause(
        "engines that were killed and left their segments behind (C12)", here=("memory-short",)
    ),
    "engine-orphan": Cause(
        "its launcher died or was killed -9, and left it behind (C6, C10, B2)",
        here=("memory-short", "port-taken", *DOWN),
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "port-taken": Cause(
        "something else was started there, or an engine without --headless (C5)", **_LOADS
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
    "bond-slave-down": Cause("one cable or port of the bond"),
    "transfer-port": Cause("another transfer, or another program on that port"),
    "transfer-way": Cause("a firewall on the giving node, or a cable"),
    "transfer-room": Cause("old images, logs or downloads fill the disk"),
    "disk-room": Cause("images and caches that nobody prunes", here=("change-open", *DOWN)),
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
    "image-missing": Cause(
        "never pulled or moved here, or pruned",
        here=("image-files-unreadable", "patch-missing", *DOWN),
        anywhere=("image-differs", *UNSERVED),
    ),
    "image-differs": Cause("a pull or a rebuild on one node only", anywhere=(*DOWN, *UNSERVED)),
    "image-arch": Cause("the image of another machine", **_STOPS),
    "patch-missing": Cause("the image was built or pulled without it", **_LOADS),
    "patch-doubled": Cause("a patch that is baked in was applied again (C15)", **_LOADS),
    "restart-policy": Cause(
        "docker update --restart, or a container of a former setup",
        here=("foreign-engine",),
        anywhere=("wedged-pair",),
    ),
    **VENV_CAUSES,
    "units-unreadable": Cause(_UNKNOWN, here=("engine-down",)),
    "unit-ghost": Cause(
        "the file lived only in a container's layer, or was moved or deleted (C13)", **_STOPS
    ),
    "other-recipe": Cause("serve was told --data recipe=…, and this run was not"),
    "drop-in-no-reset": Cause(
        "a drop-in that replaces ExecStart= needs an empty ExecStart= first",
        **_STOPS,
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
    "script-ghost": Cause(
        "the script lives only in a container's writable layer, which a reboot or a new container "
        "took away (C13)",
        **_STOPS,
    ),
    "crash-loop": Cause(
        "the engine dies at each start; its log says why", here=("engine-down",), anywhere=UNSERVED
    ),
    "engine-down": Cause("nothing runs here", anywhere=UNSERVED),
    "wedged-pair": Cause(
        "one rank died or came back alone; the other waits for the one that is gone",
        anywhere=SILENT,
    ),
    "weights-missing": Cause("never downloaded here, or the path has changed", **_LOADS),
    "weights-differ": Cause("a download on one node only, or one that was cut off", **_LOADS),
    "weights-cut": Cause("a download or a copy that broke off", **_LOADS),
    "weights-magic": Cause("another format, a git-lfs pointer, or a download cut off", **_LOADS),
    "weights-shards-missing": Cause("a download that was cut off", **_LOADS),
    **ARTIFACT_CAUSES,
    **CLUSTER,
    "forbidden-env": Cause("set by hand at a relaunch (C14)", **_LOADS),
    "hca-two-ports": Cause("the recipe names two ports instead of the twins of one"),
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
    "cannot-answer": Cause(
        "the first request reaches what the start did not: a kernel build, a lost rank",
        anywhere=("no-answer",),
    ),
    "no-answer": Cause("nobody serves there, or it hangs"),
    "gate-error": Cause("a fault of rigbook's own"),
}
