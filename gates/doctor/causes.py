"""The declared table of causes: one row a code, lowest layer first (gates/doctor/rank.py reads
it).
"""

from __future__ import annotations

from gates.doctor.cause import DOWN, GHOSTS, LOADS, SILENT, STOPS, UNSERVED, Cause
from gates.doctor.causes_of_machine import OF_MACHINE

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
