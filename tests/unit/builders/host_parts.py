"""Parts of a healthy host's snapshot; keywords change a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gates.core import GIB
from schema.cluster import (
    Candidate,
    Elf,
    HostElf,
    KubeLook,
    LibraryFile,
    LibraryLook,
    Live,
    Mapper,
    Plugin,
    Pod,
    PodName,
    Rollout,
    Swapped,
    Variable,
)
from schema.hardware import (
    Attestation,
    AttestationFile,
    Board,
    Display,
    DriverFacts,
    DriverSnapshot,
    EfiBoot,
    EfiEntry,
    Former,
    FormerContainer,
    FormerEngine,
    GpuUser,
    Graphics,
    HardwareClock,
    HardwareFacts,
    MachineSnapshot,
    Nic,
    PackageRow,
    Supervisor,
    Wol,
)
from schema.host import (
    Apt,
    BootPlace,
    BootTarget,
    Grub,
    GrubDefault,
    GrubEntry,
    InstalledKernel,
    KernelFacts,
    KernelModule,
    KernelSnapshot,
)
from schema.plan import Node, Plan
from schema.snapshot import (
    ChangeSummary,
    Connection,
    Counters,
    Disk,
    DriverHealth,
    EngineProcess,
    Gid,
    Gpu,
    GpuHealth,
    KernelLine,
    Link,
    NodeSnapshot,
    NvmeDisk,
    PciDevice,
    Port,
    RdmaPort,
    Smart,
    Stuck,
    Unit,
    Unknown,
    Unreadable,
)
from tests.unit.builders.recorded import recorded

NOW = 1_780_000_000.0
BOOT = str(recorded("change")["boot_id"])
OUR_PROCESSES = str(recorded("process")["container_id"])
SLAVES = ("enP2p1s0f0np0", "enp1s0f0np0")

# Both ports of a Spark, each with its twin, cabled and in the bond.
HCAS = ("roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1")


def rdma_port(device: str, *addresses: str, **changes: Any) -> RdmaPort:
    """An ACTIVE port of 200 Gbit/s whose GID table has these addresses from index 3 on."""
    netdev = f"{device.replace('roce', 'en')}np{device[-1]}"
    gids = [
        Gid(index=n, gid=f"::ffff:{address}", kind="RoCE v2", netdev=netdev)
        for n, address in enumerate(addresses, 3)
    ]
    own = {"device": device, "netdev": netdev, "gids": tuple(gids)}
    return RdmaPort(**recorded("rdma_port", **{**own, **changes}))


def link(name: str, **changes: Any) -> Link:
    """A link that is up at MTU 9000."""
    return Link(name=name, **recorded("link", **changes))


def process(pid: int, *argv: str, **changes: Any) -> EngineProcess:
    """An engine process of our container."""
    own = {"pid": pid, "start_ticks": 1000 + pid, "comm": argv[0][:15], "argv": argv}
    return EngineProcess(**recorded("process", **{**own, **changes}))


def port(number: int, **changes: Any) -> Port:
    """A listening port, held by sshd unless told otherwise."""
    return Port(port=number, **recorded("port", **changes))


def joined(plan: Plan, node: Node) -> tuple[Connection, ...]:
    """The connections of a node's rank with the others: the rendezvous, and one for data."""
    master = plan.recipe.multi_node.master_port if plan.recipe.multi_node else 0
    others = [other for other in plan.rig.nodes if node.role != other.role]
    return tuple(
        connection(
            str(node.fabric_address),
            local if node.role == "head" else 40000 + local % 1000,
            str(other.fabric_address),
            40000 + local % 1000 if node.role == "head" else local,
        )
        for other in others
        for local in (master, 45200)
    )


def connection(local: str, port: int, peer: str, peer_port: int, **changes: Any) -> Connection:
    """An established connection of our container's."""
    return Connection(
        local_address=local,
        local_port=port,
        peer_address=peer,
        peer_port=peer_port,
        **recorded("connection", **changes),
    )


def unit(**changes: Any) -> Unit:
    """Our unit, installed, enabled and active."""
    return Unit(**recorded("unit", **changes))


def pair_timer(**changes: Any) -> Unit:
    """The timer of the pair check, enabled and waiting."""
    return unit(**recorded("pair_timer", **changes))


def absent_unit() -> Unit:
    """Our unit where it was never installed."""
    return unit(**recorded("absent_unit"))


def change(status: str, **changes: Any) -> ChangeSummary:
    """A change of the journal."""
    return ChangeSummary(status=status, **recorded("change", **changes))


def gb10(node: Node) -> Gpu:
    """The GPU of a DGX Spark: it does not report its memory."""
    return Gpu(**recorded("gb10", uuid=f"GPU-{node.name}"))


def discrete_gpu(index: int, free: int | None, total: int | None = 16311) -> Gpu:
    """A card with memory of its own."""
    used = None if free is None or total is None else total - free
    memory = {"memory_total_mib": total, "memory_used_mib": used, "memory_free_mib": free}
    return Gpu(**recorded("discrete_gpu", index=index, uuid=f"GPU-{index}", **memory))


def disk(path: str, free: int = 2000 * GIB) -> Disk:
    """A disk with room."""
    return Disk(
        path=path, mount="/", total=4000 * GIB, free=free, inodes_free=10**8, read_only=False
    )


# Hardware facts for the tests: the seed's tower, headless, its card armed, nothing attested.

HARDWARE_NOW = 1_790_000_000.0
MAC = "04:7c:16:aa:bb:cc"
BIOS = "1.A30"
DAY = 86400


def nic(**changes: Any) -> Nic:
    """The tower's card, run by systemd-networkd."""
    values = {
        "name": "enp5s0", "mac": MAC, "permanent": MAC, "physical": True, "driver": "r8169",
        "master": None, "addresses": ("192.168.1.21/24",), "wol": Wol(supports="pumbg", set="g"),
        "manager": "networkd", "manager_evidence": "networkctl: configured", "nm": None,
        "link_file": "/usr/lib/systemd/network/99-default.link",
        "link_lines": ("NamePolicy=keep kernel database onboard slot path",
                       "MACAddressPolicy=persistent"), **changes,
    }  # fmt: skip
    return Nic(**values)


def board(**changes: Any) -> Board:
    """The seed's board."""
    values = {
        "vendor": "Micro-Star International Co., Ltd.", "name": "MAG Z890 TOMAHAWK WIFI (MS-7E32)",
        "serial": "07E3210_P61E000001", "system_vendor": "Micro-Star International Co., Ltd.",
        "system_name": "MS-7E32", "bios_vendor": "American Megatrends International, LLC.",
        "bios_version": BIOS, "bios_date": "03/06/2026", "wake_up": "Power Switch", **changes,
    }  # fmt: skip
    return Board(**values)


def machine_said(item: str, age_days: float = 1, /, **changes: Any) -> AttestationFile:
    """An attestation of an item, made `age_days` ago on the seed's board."""
    made = Attestation(
        format=1,
        item=item,
        by="milo",
        at_unix_s=int(HARDWARE_NOW - age_days * DAY),
        valid_days=365,
        bios_version=BIOS,
        board_serial="07E3210_P61E000001",
        board="the tower's",
    )
    return AttestationFile(file=f"{item}.json", said={**made.model_dump(), **changes})


def every(age_days: float = 1, **changes: Any) -> tuple[AttestationFile, ...]:
    """All items that a person can attest."""
    names = ("display", "ac_power_on", "erp_disabled", "pcie_wake", "smart_plug")
    return tuple(machine_said(name, age_days, **changes) for name in names)


def hardware_facts(**changes: Any) -> HardwareFacts:
    """The whole machine: two discrete cards without a display, no integrated graphics."""
    values = {
        "format": 1,
        "virtual": "none",
        "processor": "Intel(R) Core(TM) Ultra 7 265F",
        "nics": (nic(),),
        "addresses": {"lo": ("127.0.0.1/8",), "enp5s0": ("192.168.1.21/24",)},
        "board": board(),
        "displays": (
            Display(connector="HDMI-A-1", status="disconnected", edid=0),
            Display(connector="DP-1", status="disconnected", edid=0),
        ),
        "graphics": (
            Graphics(slot="0000:01:00.0", vendor="0x10de", device="0x2d04", boot_vga=True),
        ),
        "efi": EfiBoot(
            current="0001",
            order=("0001", "0003"),
            entries={
                "0001": EfiEntry(label="ubuntu", active=True),
                "0003": EfiEntry(label="UEFI: PXE IPv4", active=True),
            },
        ),
        "clock": HardwareClock(
            name="rtc_cmos", unix_s=int(HARDWARE_NOW), alarm=None, battery="okay"
        ),
        "clock_unix_s": HARDWARE_NOW,
        "sleep": {"sleep.target": "masked", "suspend.target": "masked"},
        "attestations": (),
        "took_s": 0.1,
        **changes,
    }
    return HardwareFacts(**values)


def with_hardware(snapshot: NodeSnapshot, hardware: HardwareFacts | Unreadable) -> MachineSnapshot:
    """The snapshot with hardware facts."""
    values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
    kernel = getattr(snapshot, "kernel", Unreadable(unreadable="not asked"))
    return MachineSnapshot(**values, kernel=kernel, hardware=hardware)


# Kernel facts for the tests: a host with two kernels, the older one pinned and with its driver.

NEW_KERNEL, OLD_KERNEL = "6.17.0-23-generic", "6.17.0-22-generic"
DRIVER = "580.126.09"


def module(release: str, version: str = DRIVER) -> KernelModule:
    """A module built for that kernel."""
    return KernelModule(
        path=f"/lib/modules/{release}/updates/nvidia.ko",
        version=version,
        vermagic=f"{release} SMP preempt mod_unload modversions",
        signer=None,
    )


def installed(release: str, driver: KernelModule | None, **changes: Any) -> InstalledKernel:
    """A kernel that is whole."""
    values = {
        "release": release,
        "vmlinuz": f"/boot/vmlinuz-{release}",
        "initrd": f"/boot/initrd.img-{release}",
        "module": driver,
        **changes,
    }
    return InstalledKernel(**values)


def path(release: str) -> str:
    """A kernel's own id path."""
    return f"gnulinux-advanced-u>gnulinux-{release}-advanced-u"


def entry(release: str, ident: str = "") -> GrubEntry:
    """A menu entry."""
    return GrubEntry(
        path=ident or path(release),
        title=f"Linux {release}",
        kernel=release,
        linux=f"/boot/vmlinuz-{release}",
        initrd=f"/boot/initrd.img-{release}",
    )


def target(
    release: str | None, how: str = "saved", why: str = "saved_entry names it"
) -> BootTarget:
    """What GRUB takes."""
    return BootTarget.model_validate(
        {"kernel": release, "entry": path(release) if release else None, "title": "x", "how": how,
         "why": why}
    )  # fmt: skip


def grub(**changes: Any) -> Grub:
    """GRUB with the older kernel pinned by rigbook."""
    values = {
        "folder": "/boot/grub",
        "configured": GrubDefault(value="saved", file="/etc/default/grub.d/x.cfg", mode="saved"),
        "grubenv": "ok",
        "saved_entry": path(OLD_KERNEL),
        "next_entry": None,
        "saves": True,
        "entries": (entry(NEW_KERNEL, "gnulinux-simple-u"), entry(NEW_KERNEL), entry(OLD_KERNEL)),
        "next": target(OLD_KERNEL),
        "default": target(OLD_KERNEL),
        "updater": True,
        "ours": True,
        **changes,
    }
    return Grub(**values)


def place(**changes: Any) -> BootPlace:
    """A plain /boot with room."""
    return BootPlace(**recorded("boot_place", **changes))


def apt(**changes: Any) -> Apt:
    """apt with the pinned kernel's packages held."""
    names = ("linux-generic", f"linux-image-{OLD_KERNEL}")
    values = {
        "holds": names,
        "pinning": {OLD_KERNEL: names, NEW_KERNEL: ("linux-generic", f"linux-image-{NEW_KERNEL}")},
        "pending": (),
        "blacklist": (),
        "never_auto_remove": (),
        "remove_unused_kernels": None,
        "unattended_upgrades": True,
        **changes,
    }
    return Apt(**values)


def kernel_facts(**changes: Any) -> KernelFacts:
    """The whole host."""
    kernels = (installed(OLD_KERNEL, module(OLD_KERNEL)), installed(NEW_KERNEL, None))
    own = {"kernels": kernels, "grub": grub(), "boot": place(), "apt": apt()}
    return KernelFacts(**recorded("kernel", **{**own, **changes}))


def with_kernel(snapshot: NodeSnapshot, kernel: KernelFacts | Unreadable) -> KernelSnapshot:
    """The snapshot with kernel facts."""
    values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
    return KernelSnapshot(**values, kernel=kernel)


# Driver facts for the tests: the seed's tower, 580.126.09 with DKMS, 580.142 in the lists.

OLD_DRIVER, NEW_DRIVER = "580.126.09", "580.142"
BUILD = "0ubuntu0.24.04.1"
DRIVER_PACKAGES = ("libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-kernel-common-580")


def row(name: str, **changes: Any) -> PackageRow:
    """A package of the driver that apt would upgrade."""
    return PackageRow(
        **{
            "name": name,
            "old": f"{OLD_DRIVER}-{BUILD}",
            "new": f"{NEW_DRIVER}-{BUILD}",
            "arch": "amd64",
            "old_arch": "amd64",
            "kept": "repository",
            **changes,
        }
    )


def rows() -> tuple[PackageRow, ...]:
    """All that belongs to the upgrade; the firmware's package has the version in its name."""
    firmware = row(f"nvidia-firmware-580-{NEW_DRIVER}", old=None, old_arch=None, kept=None)
    return (*(row(name) for name in DRIVER_PACKAGES), firmware)


def driver_facts(**changes: Any) -> DriverFacts:
    """The whole host; a change `apt.KEY` is one of apt's plan."""
    apt = {
        "family": dict.fromkeys(DRIVER_PACKAGES, f"{OLD_DRIVER}-{BUILD}"),
        "holds": (),
        "wanted": NEW_DRIVER,
        "available": (OLD_DRIVER, NEW_DRIVER),
        "branch": "580",
        "rows": rows(),
        "problem": None,
        "download": 310 << 20,
        **{key[4:]: value for key, value in changes.items() if key.startswith("apt.")},
    }
    own = {key: value for key, value in changes.items() if not key.startswith("apt.")}
    return DriverFacts(**recorded("driver", **{"apt": apt, **own}))


def done(**changes: Any) -> DriverFacts:
    """The host once the driver is changed."""
    family = dict.fromkeys(DRIVER_PACKAGES, f"{NEW_DRIVER}-{BUILD}")
    return driver_facts(
        **{
            "versions": (NEW_DRIVER,),
            "loaded": NEW_DRIVER,
            "apt.family": family,
            "apt.rows": (),
            **changes,
        }
    )


def user(pid: int, comm: str, unit: str | None = None, container: str | None = None) -> GpuUser:
    """A process with the GPU open."""
    return GpuUser(pid=pid, comm=comm, unit=unit, container=container)


def with_driver(snapshot: NodeSnapshot, driver: Any = None, kernel: Any = None) -> DriverSnapshot:
    """The snapshot with driver, hardware and kernels."""
    values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
    return DriverSnapshot(
        **values, driver=driver or driver_facts(), kernel=kernel or kernel_facts(),
        hardware=hardware_facts(),
    )  # fmt: skip


# Parts of a machine's health, well unless told otherwise.

HEALTHY_DRIVER = "580.95.05"


def gpu(**changes: Any) -> GpuHealth:
    """A busy RTX 5060 Ti at its clock."""
    values = {
        "bus_id": "00000000:01:00.0", "name": "NVIDIA GeForce RTX 5060 Ti", "persistence": True,
        "display": False, "reasons": ("sw_power_cap",), "temp_c": 66, "slow_c": 95,
        "power_w": 178, "power_limit_w": 180, "usual_limit_w": 180, "clock_mhz": 2550,
        "max_clock_mhz": 3090,
        "busy_percent": 97, "link_gen": 5, "max_link_gen": 5, "replays": 0, **changes,
    }  # fmt: skip
    return GpuHealth(**values)


def line(kind: str, text: str, ago: float = 60, boot: int = 0, **changes: Any) -> KernelLine:
    """A line of the kernel's, `ago` seconds old, of the boot that many before this one."""
    of = f"{boot}{BOOT[1:]}" if boot else BOOT
    return KernelLine(kind=kind, text=text, unix_s=NOW - ago, **{"boot": of, **changes})


def pci(slot: str, kind: str = "nic", **changes: Any) -> PciDevice:
    """A link of 32 GT/s and 4 lanes, whole."""
    values = {
        "driver": {"gpu": "nvidia", "nic": "mlx5_core", "nvme": "nvme"}[kind],
        "speed": 32.0, "width": 4, "card_speed": 32.0, "card_width": 4, "port_speed": 32.0,
        "port_width": 4, "errors": {"fatal": 0, "nonfatal": 0, "correctable": 0}, **changes,
    }  # fmt: skip
    return PciDevice(slot=slot, kind=kind, **values)


def late_nvme(why: str) -> NvmeDisk:
    """A disk whose tool did not answer."""
    return nvme().model_copy(update={"smart": Unknown(unreadable=why)})


def nvme(state: str = "live", **smart: Any) -> NvmeDisk:
    """A disk that is well, as nvme-cli tells it."""
    values = {"source": "nvme", "warning": 0, "media_errors": 0, "used_percent": 3, "spare": 100,
              "spare_least": 10, **smart}  # fmt: skip
    model = "Samsung SSD 990 PRO 2TB"
    return NvmeDisk(name="nvme0", model=model, state=state, smart=Smart(**values))


MADE: dict[str, Callable[..., Any]] = {
    "counters": lambda **values: Counters(**values),
    "driver": lambda **values: DriverHealth(
        **{"module": HEALTHY_DRIVER, "libraries": (HEALTHY_DRIVER,), **values}
    ),
    "gpu_health": gpu,
    "kernel_line": line,
    "nvme": nvme,
    "late_nvme": late_nvme,
    "pci": pci,
    "stuck": lambda **values: Stuck(**values),
}


# A library folder as `node library look` reports it, with one value changed at a time.

FOLDER = "/usr/local/vgpu"
BASE = f"{FOLDER}/libvgpu.so"
ORIGINAL, OUR_LIBRARY, OTHER = "a" * 64, "b" * 64, "c" * 64
POD = "5c1e2d3f-0a1b-4c2d-8e3f-0123456789ab"
LIBRARY_NAMES = ("cuCtxGetDevice", "cuInit", "cuMemAlloc_v2")


def elf(**changes: object) -> Elf:
    """What a library says of itself."""
    values = {
        "bits": 64,
        "machine": "x86-64",
        "shared": True,
        "soname": "",
        "exported": LIBRARY_NAMES,
        "needed": ("libc.so.6",),
    }
    return Elf.model_validate({**values, **changes})


def file(path: str = BASE, **changes: object) -> LibraryFile:
    """One entry of the folder."""
    values = {"path": path, "kind": "file", "size": 863032, "inode": 7, "mode": "0755", "uid": 0,
              "gid": 0, "owner": "root", "group": "root", "sha256": ORIGINAL, "elf": elf(),
              "broken": None}  # fmt: skip
    return LibraryFile.model_validate({**values, **changes})


def mapper(**changes: object) -> Mapper:
    """A GPU process that has the library mapped."""
    values = {"pid": 812, "start_ticks": 9, "uid": 0, "argv0": "python3", "container": "d" * 64,
              "pod": POD, "path": BASE, "inode": 7, "deleted": False, "sha256": ORIGINAL,
              "source": BASE}  # fmt: skip
    return Mapper.model_validate({**values, **changes})


def plugin(image: str = "projecthami/hami:v2.4.0") -> Plugin:
    """The plugin's container."""
    return Plugin(namespace="gpu", name="hami-device-plugin", container="device-plugin",
                  image=image, args=(), mounts=("/usr/local/vgpu",))  # fmt: skip


def swapped(**changes: object) -> Swapped:
    """What an earlier swap wrote down."""
    values = {
        "rig": "olares",
        "node": "one",
        "target": BASE,
        "original": ORIGINAL,
        "ours": OUR_LIBRARY,
        "guard": False,
        "reapply": False,
    }
    return Swapped.model_validate({**values, **changes})


def library_look(**changes: object) -> LibraryLook:
    """A folder with the plugin's own library in it, and one pod that has it mapped."""
    values: dict[str, object] = {
        "folder": FOLDER,
        "host": HostElf(bits=64, machine="x86-64"),
        "files": (file(),),
        "preload": {"/etc/ld.so.preload": None, f"{FOLDER}/ld.so.preload": f"{BASE}\n"},
        "mappers": (mapper(),),
        "plugins": (plugin(),),
        "pods": {POD: PodName(namespace="ai", name="lucebox-7d9", phase="Running",
                              owner_kind="ReplicaSet", owner="lucebox-7d")},
        "state": None,
    }  # fmt: skip
    return LibraryLook(**{**values, **changes})


def candidate(**changes: object) -> Candidate:
    """A library of ours that fits."""
    values = {"sha256": OUR_LIBRARY, "size": 676000, "elf": elf(), "broken": None, "missing": (),
              "refused": None}  # fmt: skip
    return Candidate.model_validate({**values, **changes})


# A Deployment as `node kube look` reports it, with one value changed at a time.

NAME = "CUDA_DEVICE_MEMORY_LIMIT_0"
OOM = "[HAMI-core ERROR allocator.c:56]: Device 0 OOM 24232551680 / 24117248000"


def kube_look(value: str | None = "24000m", log: tuple[str, ...] = (), **pod: object) -> KubeLook:
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


# Former setups as node's `former` tells them: the seed's, a compose project, a unit's venv.

ARGV = (
    "/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/x", "--port", "8000",
    "--served-model-name", "tiny",
)  # fmt: skip
BOX, UNIT = "vllm_ds4", "vllm-ds4.service"


def engine(**changes: Any) -> FormerEngine:
    """A head's engine by docker exec."""
    values: dict[str, Any] = {
        "pid": 812, "start_ticks": 99, "argv": ARGV, "env": {"HF_HOME": "/models"},
        "cwd": "/workspace", "uid": 0, "user": "root", "exe": "/usr/bin/python3.12", "unit": None,
        "container": BOX, "inside_of": "exec", "venv": None, "port": 8000, "node_rank": 0,
        "is_head": True, **changes,
    }  # fmt: skip
    return FormerEngine.model_validate(values)


def container(**changes: Any) -> FormerContainer:
    """A container that only waits, as the seed's."""
    values: dict[str, Any] = {
        "id": "a" * 64, "name": BOX, "image": "nightly:latest", "image_id": "sha256:" + "1" * 64,
        "state": "running", "main": ("sleep", "infinity"), "env": {}, "image_env": {},
        "mounts": (), "restart_policy": "unless-stopped", "auto_remove": False,
        "network_mode": "host", "ipc_mode": "host", "privileged": True, "runtime": "runc",
        "gpus": True, "labels": {}, **changes,
    }  # fmt: skip
    return FormerContainer.model_validate(values)


def by_unit(**changes: Any) -> Supervisor:
    """The unit that runs the seed's docker exec."""
    values: dict[str, Any] = {
        "kind": "unit", "name": UNIT, "starts_at_boot": True, "enabled": "enabled",
        "active": "active/running", "restart": "on-failure",
        "evidence": "/etc/systemd/system/vllm-ds4.service: names container vllm_ds4", **changes,
    }  # fmt: skip
    return Supervisor.model_validate(values)


def by_policy(name: str = BOX, policy: str = "unless-stopped") -> Supervisor:
    """docker's restart policy."""
    return Supervisor(
        kind="container-policy", name=name, starts_at_boot=True, restart=policy,
        evidence=f"restart policy {policy}, running", containers=(name,),
    )  # fmt: skip


def by_cron() -> Supervisor:
    """The seed's line in the system's crontab."""
    text = "@reboot root docker start vllm_ds4"
    return Supervisor(
        kind="cron", name="/etc/crontab:12", starts_at_boot=True, file="/etc/crontab", line=12,
        text=text, evidence=f"{text} (names container vllm_ds4)",
    )  # fmt: skip


def by_pod(deployment: str | None = "lucebox") -> Supervisor:
    """A Deployment."""
    return Supervisor(
        kind="pod", name="default/lucebox", starts_at_boot=True, evidence="pod default/lucebox-x",
        namespace="default", deployment=deployment, uid="u-1" if deployment else None,
        resource_version="7", template_container="engine", grace_s=30.0,
    )  # fmt: skip


def pod(deployment: str | None = "lucebox", network: str = "host") -> Former:
    """An engine in a pod."""
    one = engine(container="lucebox-x/engine", inside_of="pod")
    box = container(name=one.container, network_mode=network, restart_policy="no")
    return Former(engines=(one,), containers=(box,), supervisors=(by_pod(deployment),))


def by_compose() -> Supervisor:
    """A project of docker compose."""
    return Supervisor(
        kind="compose", name="llm", starts_at_boot=False, containers=("llm-vllm-1",),
        evidence="labels of container llm-vllm-1: /srv/llm/compose.yaml", project="llm",
        files=("/srv/llm/compose.yaml",), working_dir="/srv/llm", services=("vllm",),
    )  # fmt: skip


def seed(**changes: Any) -> Former:
    """The seed's: a waiting container, docker exec by a unit, a policy, a line at boot."""
    return Former(
        engines=(engine(**changes),), containers=(container(),),
        supervisors=(by_unit(), by_policy(), by_cron()),
    )  # fmt: skip


def seed_worker() -> Former:
    """The same on the worker."""
    return seed(argv=(*ARGV, "--node-rank", "1", "--headless"), node_rank=1, is_head=False)


def compose() -> Former:
    """A project whose container's main process is the engine."""
    box = container(name="llm-vllm-1", main=("vllm", "serve"))
    return Former(
        engines=(engine(container=box.name, inside_of="main"),), containers=(box,),
        supervisors=(by_policy(box.name), by_compose()),
    )  # fmt: skip


def by_hand() -> Former:
    """eugr's launch-cluster.sh: a container with --rm that waits, and docker exec --detach."""
    return Former(
        engines=(engine(),), containers=(container(restart_policy="no", auto_remove=True),),
        supervisors=(Supervisor(kind="shell", name="812", starts_at_boot=False, evidence="hand"),),
    )  # fmt: skip


def venv(unit: str | None = "vllm.service") -> Former:
    """A venv's engine, under a unit or by a shell."""
    one = engine(container=None, inside_of="host", unit=unit, venv="/opt/vllm")
    rows = (by_unit(name=unit),) if unit else ()
    return Former(engines=(one,), supervisors=rows)


def former_said(former: Former) -> dict[str, Any]:
    """As the host sends it."""
    return former.model_dump(mode="json")
