"""What the machine says of itself: counters, disks, kernel log, PCI."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from node import gpus
from node.core import files, proc
from node.core.errors import CannotRead, Json, guarded
from node.core.run import TimedOut, each, run, which

# What the machine itself says of its GPUs, links, disks and kernel; read-only, decides nothing.

# Which files of this host name which IPv4 addresses: what sets them at the next boot.

# netplan, NetworkManager, networkd, ifupdown; then what people write by hand
FOLDERS = (
    "/etc/netplan", "/etc/NetworkManager", "/etc/systemd", "/etc/network",
    "/etc/networkd-dispatcher", "/etc/cloud", "/etc/cron.d", "/etc/rc.local", "/etc/init.d",
    "/etc/sysconfig", "/lib/netplan", "/usr/local/bin", "/usr/local/sbin",
    # leases: who asked for an address once asks for it again
    "/run/systemd/netif/leases", "/var/lib/NetworkManager", "/var/lib/dhcp",
)  # fmt: skip
MAX_BYTES = 64 * 1024
_ADDRESS = re.compile(rb"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


def read_addresses(folders: tuple[str, ...] = FOLDERS) -> dict[str, list[str]]:
    """Gives, by address, the files that name it."""
    found: dict[str, list[str]] = {}
    for top in folders:
        walk = os.walk(top) if os.path.isdir(top) else [("", [], [top])]
        for folder, _, names in walk:
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path) and os.path.getsize(path) <= MAX_BYTES:
                    for address in _ADDRESS.findall(proc.read_bytes(path) or b""):
                        paths = found.setdefault(address.decode(), [])
                        paths += [path] if path not in paths else []
    return found


# Error counters of RDMA ports and network cards, as what was added since an earlier reading.
#
# A counter starts at the boot or when its driver loads, so its value alone says nothing of now.
# The
# earlier reading is the watch's where it keeps one of this boot, else one of a moment before.

RDMA, NET = "/sys/class/infiniband", "/sys/class/net"
WAIT_S = 0.15
MAX_AGE_S = 3600.0
# Documentation/ABI/stable/sysfs-class-infiniband; hw_counters are mlx5's
_PORT = ("counters/link_downed", "counters/symbol_error", "counters/link_error_recovery",
         "hw_counters/rnr_nak_retry_err", "hw_counters/roce_slow_restart",
         "hw_counters/packet_seq_err")  # fmt: skip
NO_COUNTERS: Json = {"format": 1, "boot": "", "unix_s": 0.0, "values": {}}


def _folder(path: str) -> list[str]:
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def counter_values(rdma: str = RDMA, net: str = NET) -> dict[str, int]:
    """Gives every counter by `DEVICE/PORT NAME` or `LINK NAME`; links are those with a card."""
    paths = {
        f"{device}/{port} {name.rpartition('/')[2]}": f"{rdma}/{device}/ports/{port}/{name}"
        for device in _folder(rdma)
        for port in _folder(f"{rdma}/{device}/ports")
        for name in _PORT
    }
    paths |= {
        f"{link} carrier_changes": f"{net}/{link}/carrier_changes"
        for link in _folder(net)
        if os.path.exists(f"{net}/{link}/device")
    }
    texts = {key: proc.read_text(path) for key, path in paths.items()}
    return {key: int(text) for key, text in texts.items() if text.isdigit()}


def counters_path() -> str:
    """Gives where the watch's reading lies."""
    return os.path.join(files.state_root(), "watch", "counters.json")


def keep_counters() -> None:
    """Keep a reading for later differences (the watch, at each of its looks)."""
    now = {**NO_COUNTERS, "boot": proc.boot_id(), "unix_s": time.time(), "values": counter_values()}
    files.save_state(counters_path(), now)


def read_counters() -> Json:
    """Gives what each counter grew by, and over how many seconds."""
    kept = files.load_state(counters_path(), NO_COUNTERS)
    age = time.time() - kept["unix_s"]
    if kept["boot"] != proc.boot_id() or not WAIT_S <= age < MAX_AGE_S:
        kept = {"unix_s": time.time(), "values": counter_values()}
        time.sleep(WAIT_S if kept["values"] else 0)
    now = counter_values()
    then = kept["values"]
    grew = {key: value - then[key] for key, value in now.items() if value > then.get(key, value)}
    return {"seconds": round(max(time.time() - kept["unix_s"], 0.001), 3), "grew": grew}


# SMART of NVMe disks, and filesystems that became read-only by themselves.

BLOCK_ROOT = "/sys/class/nvme"
BLOCK = "/sys/block"
MOUNTINFO = "/proc/self/mountinfo"
TIMEOUT_S = 3.0
# a filesystem on a disk that turns itself read-only after an error
_ON_DISK = ("ext3", "ext4", "btrfs", "f2fs", "jfs")
_STOPPED = frozenset(("ro", "emergency_ro", "shutdown"))
# NVMe base specification, SMART log page: the names of nvme-cli, and those of smartctl
_NAMES = {
    "warning": ("critical_warning", "critical_warning"),
    "media_errors": ("media_errors", "media_errors"),
    "used_percent": ("percent_used", "percentage_used"),
    "spare": ("avail_spare", "available_spare"),
    "spare_least": ("spare_thresh", "available_spare_threshold"),
}


def parse_smart(text: str, source: str) -> Json | None:
    """Gives the SMART values of nvme-cli's or smartctl's JSON; None for what has none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    body = document.get("nvme_smart_health_information_log", document)
    found: Json = {"source": source}
    for name, keys in _NAMES.items():
        value = next((body[key] for key in keys if key in body), None)
        if name == "used_percent" and value is None:
            value = body.get("percentage_used")
        if isinstance(value, dict):  # newer nvme-cli: {"value": 4, ...}
            value = value.get("value")
        found[name] = int(value) if isinstance(value, (int, float)) else None
    return found if found["media_errors"] is not None else None


def _smart(name: str) -> Json | None:
    """Gives a disk's SMART values by whichever tool is there, or why none said them; None without
    a tool that reads it."""
    late = []
    for tool, words in (
        ("nvme", ["nvme", "smart-log", f"/dev/{name}", "-o", "json"]),
        ("smartctl", ["smartctl", "-A", "-j", f"/dev/{name}"]),
    ):
        if which(tool) is None:
            continue
        try:
            found = parse_smart(run(words, TIMEOUT_S).out, tool)
        except (TimedOut, OSError) as error:
            late.append(str(error))
            continue
        if found:
            return found
    return {"unreadable": "; ".join(late)} if late else None


def read_disks(root: str = BLOCK_ROOT) -> list[Json]:
    """Gives a row for each NVMe controller; `smart` None: no tool that reads it."""
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    values = each(_smart, names, 4) if names else []
    return [
        {
            "name": name,
            "model": proc.read_text(f"{root}/{name}/model") or None,
            "state": proc.read_text(f"{root}/{name}/state") or None,
            "smart": smart,
        }
        for name, smart in zip(names, values, strict=True)
    ]


def turned_read_only(path: str = MOUNTINFO) -> list[str]:
    """Gives the mount points of filesystems that their kernel made read-only.

    Mounted rw, and the filesystem itself is ro: so says mountinfo after errors=remount-ro. One
    that was mounted read-only on purpose has ro in both places. ext4 says emergency_ro or shutdown
    since Linux 6.15, and nothing from 6.12 on (longhorn 13452) or in Debian's 6.1.0-50: there the
    kernel's line tells.
    """
    found = []
    for line in proc.read_text(path).splitlines():
        left, _, right = line.partition(" - ")
        fields, what = left.split(), right.split()
        if len(fields) < 6 or len(what) < 3 or what[0] not in _ON_DISK:
            continue
        if "rw" in fields[5].split(",") and not _STOPPED.isdisjoint(what[2].split(",")):
            found.append(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4]))
    return sorted(set(found))


def fixed_disks(root: str = BLOCK) -> list[str]:
    """Gives the disks that are no removable ones: what somebody unplugs has I/O errors, too."""
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    return [
        name
        for name in names
        if os.path.exists(f"{root}/{name}/device")
        and proc.read_text(f"{root}/{name}/removable") == "0"
        and "/usb" not in os.path.realpath(f"{root}/{name}")
    ]


# Lines of the kernel about hardware and about itself, of this boot and earlier.
#
# This boot's come from /dev/kmsg, those that its ring has lost and earlier boots' from the
# journal, a
# crash's last words from pstore. A container has no kernel log of its own: none there.

KMSG = "/dev/kmsg"
PSTORES = ("/sys/fs/pstore", "/var/lib/systemd/pstore")
# of one kind, device and number: a disk that fails all day must not hide the one line of a GPU
MAX_LINES = 40
MAX_KEPT = 2000
SINCE = "-30days"
_NOT_LOOKED = "not looked for the kernel's lines of earlier boots, and of this one's first hours"
# a kind, and the words of its lines; the first that fits. `at` is the device, `number` an Xid's.
_KINDS: tuple[tuple[str, str], ...] = (
    # older drivers leave out PCI:, and a slice of MIG stands behind the address
    ("xid", r"NVRM: Xid \((?:PCI:)?(?P<at>[0-9a-fA-F:.]+)[^)]*\): (?P<number>\d+)"),
    ("gpu-lost", r"NVRM: .*(?P<at>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\S*"
                 r".* (?:has fallen off|RmInitAdapter failed)"),
    ("panic", r"(?P<at>)Kernel panic - not syncing"),
    ("oops", r"(?P<at>)(?:BUG: unable to handle|BUG: kernel NULL pointer|Oops: |general protection "
             r"fault, probably|kernel BUG at )"),
    ("lockup", r"(?P<at>)(?:soft lockup - CPU|[Hh]ard LOCKUP|self-detected stall on CPU"
               r"|detected (?:expedited )?stalls on CPUs)"),
    ("hung", r"INFO: task (?P<at>.+?):\d+ (?:<.*> )?blocked (?:in I/O wait )?for more than"),
    # the second is ACPI's, on a machine whose firmware sees errors first: corrected ones are none
    ("mce", r"(?P<at>)(?:mce: \[Hardware Error\]: (?:CPU \d+: Machine Check|Machine check events)"
            r"|\[Hardware Error\]: event severity: (?:fatal|recoverable))"),
    ("edac", r"EDAC (?P<at>MC\d+): \d+ UE "),
    ("aer", r"(?P<at>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): (?:AER: )?"
            r"(?:PCIe Bus Error: severity=(?:Uncorrect|Fatal)"
            r"|(?:Multiple )?Uncorrect(?:ed|able) \((?:Non-)?Fatal\))"),
    ("nvme", r"nvme (?P<at>nvme\d+): (?:I/O (?:tag )?\d+.* timeout|controller is down|Device not "
             r"ready|Removing after probe failure|Disabling device after reset failure)"),
    # a disk that refuses to discard blocks, or to zero them, is well
    ("disk", r"(?:I/O error, dev |critical \w+ error, dev |Buffer I/O error on dev(?:ice)? )"
             r"(?P<at>[a-z]+\d*(?:n\d+)?)"
             r"(?!.* op 0x[0-9a-f]+:\((?:DISCARD|WRITE_ZEROES|SECURE_ERASE)\))"),
    ("filesystem", r"(?:EXT4-fs error \(device |(?:EXT4-fs|XFS|BTRFS \w+) \((?:device )?)"
                   r"(?P<at>[\w-]+)(?=.*(?:EXT4-fs error|Remounting filesystem read-only"
                   r"|has been shut down|forced readonly)|.*\): .*:\d+: )"),
    ("nic", r"mlx5_core (?P<at>[0-9a-fA-F:]+\.\d).*(?:health compromised|Health issue observed"
            r"|Cable error|health poll failed|firmware.*fatal|reported error syndrome)"),
)  # fmt: skip
# One of them stands in each such line: a full ring is read in a third of the time.
_WORDS = ("NVRM", "panic", "BUG", "Oops", "general protection", "ockup",
          "LOCKUP", "stall", "blocked ", "Hardware Error", "EDAC MC", "ncorrect", "=Fatal",
          "nvme nvme", "I/O error", "error, dev", "EXT4", "XFS", "BTRFS", "mlx5_core")  # fmt: skip
_PATTERNS = [(kind, re.compile(words)) for kind, words in _KINDS]
# The journal is asked for the same lines, without the names of the groups, which stand twice.
_ASKED = re.sub(r"\?P<\w+>", "", "|".join(words for _, words in _KINDS))


def kernel_log_classified(text: str, boot: str | None, at_unix_s: float | None) -> Json | None:
    """Gives a line's row, None for a line about nothing that is watched."""
    if not any(word in text for word in _WORDS):
        return None
    for kind, pattern in _PATTERNS:
        found = pattern.search(text)
        if found:
            number = found.groupdict().get("number")
            return {"kind": kind, "device": found["at"] or None, "text": text.strip()[:300],
                    "number": int(number) if number else None, "boot": boot,
                    "unix_s": at_unix_s}  # fmt: skip
    return None


def _records(path: str) -> list[str]:
    """Gives the records of /dev/kmsg as they lie in the kernel's ring, oldest first."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found: list[str] = []
    try:
        while True:
            try:
                raw = os.read(fd, 8192)
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # overwritten meanwhile: the next read gives the oldest that is left
            if not raw:
                return found
            found.append(raw.decode("utf-8", "replace"))
    finally:
        os.close(fd)


def parse_kmsg(records: list[str], boot: str, started: float) -> list[Json]:
    """Gives the watched rows of /dev/kmsg's records; `started` is the boot's Unix time."""
    rows = []
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit():
            row = kernel_log_classified(text.split("\n")[0], boot, started + int(fields[2]) / 1e6)
            rows += [row] if row else []
    return newest(rows)


def newest(rows: list[Json]) -> list[Json]:
    """Gives the last MAX_LINES rows of each kind, device and number, in their order."""
    seen: dict[tuple[Any, ...], int] = {}
    found = []
    for row in reversed(rows):
        what = (row["kind"], row["device"], row["number"], row["boot"])
        seen[what] = seen.get(what, 0) + 1
        found += [row] if seen[what] <= MAX_LINES else []
    return found[::-1]


def this_boot() -> list[Json]:
    """Gives this boot's rows; none in a container, where the file is no device of the kernel's."""
    try:
        if not stat.S_ISCHR(os.stat(KMSG).st_mode):
            return []
        records = _records(KMSG)
    except FileNotFoundError:
        return []
    up = float((proc.read_text("/proc/uptime") or "0").split()[0])
    return parse_kmsg(records, proc.boot_id(), time.time() - up)


def kept_lines() -> list[Json]:
    """Gives the rows of all boots that the journal has kept; none where there is no journalctl.

    Raises CannotRead when it is late or fails.
    """
    words = ["journalctl", "-q", "-r", "--no-pager", "_TRANSPORT=kernel", "--since", SINCE, "-g",
             _ASKED, "-n", str(MAX_KEPT), "-o", "json",
             "--output-fields=MESSAGE,_BOOT_ID"]  # fmt: skip
    try:
        done = run(words, TIMEOUT_S)
    except FileNotFoundError:
        return []
    except TimedOut as error:
        raise CannotRead(f"{_NOT_LOOKED}: {error}") from None
    # it ends with 1, too, where no line fits
    if done.rc != 0 and done.err.strip():
        raise CannotRead(f"{_NOT_LOOKED}: journalctl: {done.last_line()[:300]}")
    rows = []
    for line in done.out.splitlines()[::-1]:
        try:
            entry = json.loads(line)
            raw, at = entry["_BOOT_ID"], int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):
            continue
        boot = f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        row = kernel_log_classified(str(entry.get("MESSAGE")), boot, at)
        rows += [row] if row else []
    return newest(rows)


def _last_words() -> list[Json]:
    """Gives the panic of each crash that the firmware or systemd-pstore kept."""
    rows = []
    for top in PSTORES:
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if not name.startswith("dmesg"):
                    continue
                for line in proc.read_text(path).splitlines():
                    row = kernel_log_classified(line, None, os.stat(path).st_mtime)
                    if row and row["kind"] == "panic":
                        rows.append({**row, "device": path})
    return rows


def read_kernel_log() -> list[Json]:
    """Gives the rows of this boot's ring, a crash's last words first.

    Raises CannotRead when this boot's log is not shown.
    """
    try:
        return [*_last_words(), *this_boot()]
    except OSError as error:
        raise CannotRead(f"{KMSG}: {error.strerror}") from None


def with_kept(parts: Json) -> Json:
    """Gives the parts with the journal's rows among the kernel's; of `journal` stays why not.

    The ring of a host that talks much (a bridge for each container) loses its first hours.
    """
    kept, now = parts.get("journal"), parts.get("kernel")
    if not isinstance(kept, list):
        return parts
    if isinstance(now, list):
        own, shown = proc.boot_id(), {row["text"] for row in now}
        more = [row for row in kept if row["boot"] != own or row["text"] not in shown]
        now = [*more, *now]
    return {**parts, "kernel": now, "journal": None}


# PCIe links and error counters of GPUs, network cards and NVMe disks, from sysfs.
#
# Formats: Documentation/ABI/testing/sysfs-bus-pci (current_link_speed …) and
# sysfs-bus-pci-devices-aer_stats.

PCI_ROOT = "/sys/bus/pci/devices"
# the classes that matter: display, 3D, Ethernet, InfiniBand, NVMe
_CLASSES = {"0x0300": "gpu", "0x0302": "gpu", "0x0200": "nic", "0x0207": "nic", "0x0108": "nvme"}
_AER = ("fatal", "nonfatal", "correctable")


def _speed(path: str) -> float | None:
    """Gives the GT/s of `16.0 GT/s PCIe`."""
    word = proc.read_text(path).partition(" ")[0]
    return float(word) if word.replace(".", "", 1).isdigit() else None


def _width(path: str) -> int | None:
    """Gives the lanes; None where the kernel tells none (0 or 255)."""
    text = proc.read_text(path)
    lanes = int(text) if text.isdigit() else 0
    return lanes if 0 < lanes < 255 else None


def _total(path: str) -> int | None:
    """Gives the total of an aer_dev_* file; None where the kernel counts none."""
    for line in proc.read_text(path).splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("TOTAL") and value.isdigit():
            return int(value)
    return None


def read_pci(root: str = PCI_ROOT) -> list[Json]:
    """Gives a row for each device: what the link is, what the card and the port before it can."""
    found: list[Json] = []
    for slot in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        device = os.path.realpath(f"{root}/{slot}")
        kind = _CLASSES.get(proc.read_text(f"{device}/class")[:6])
        if kind is None or not os.path.exists(f"{device}/driver"):
            continue
        if os.path.exists(f"{device}/physfn"):
            continue  # a virtual function (SR-IOV, vGPU): no link of its own, no GPU of nvidia-smi
        port = os.path.dirname(device)
        found.append(
            {
                "slot": slot,
                "kind": kind,
                "driver": os.path.basename(os.path.realpath(f"{device}/driver")),
                "speed": _speed(f"{device}/current_link_speed"),
                "width": _width(f"{device}/current_link_width"),
                "card_speed": _speed(f"{device}/max_link_speed"),
                "card_width": _width(f"{device}/max_link_width"),
                "port_speed": _speed(f"{port}/max_link_speed"),
                "port_width": _width(f"{port}/max_link_width"),
                "errors": {
                    name: total
                    for name in _AER
                    if (total := _total(f"{device}/aer_dev_{name}")) is not None
                },
            }
        )
    return found


# The section `health` of a snapshot, and the verb of the same name.

LIMIT_S = 12.0
# A disk that is busy keeps a process waiting for some tenths of a second.
STUCK_S = 2.0
_KTHREADD = 2
_PARTS: dict[str, Callable[[], Any]] = {
    "gpus": gpus.gpu_health,
    "driver": gpus.read_driver,
    "kernel": read_kernel_log,
    "journal": kept_lines,
    "pci": read_pci,
    "counters": read_counters,
    "disks": read_disks,
    "read_only": turned_read_only,
    "fixed": fixed_disks,
    "addresses": read_addresses,
}


def _asleep() -> dict[int, tuple[str, str]]:
    """Gives the processes in uninterruptible sleep: comm, and how often each has given way.

    A thread of the kernel's own may wait like that all its life.
    """
    found = {}
    for pid in proc.pids():
        row = proc.stat(pid)
        if row is not None and row.state == "D" and _KTHREADD not in (pid, row.ppid):
            status = proc.read_text(f"/proc/{pid}/status")
            gave = [line for line in status.splitlines() if "voluntary_ctxt_switches" in line]
            found[pid] = (row.comm, f"{row.start_ticks} {gave}")
    return found


def _stuck(before: dict[int, tuple[str, str]], until: float) -> list[Json]:
    """Gives those of `before` that sleep on until then, without having given way once."""
    while True:
        now = _asleep() if before else {}
        before = {pid: row for pid, row in before.items() if now.get(pid) == row}
        if not before or time.monotonic() >= until:
            return [{"pid": pid, "name": row[0]} for pid, row in before.items()]
        time.sleep(0.1)


def read_health() -> Json:
    """Gives all parts; each waits in a thread of its own, and one that is late says so.

    `stuck` are processes that stay in uninterruptible sleep for STUCK_S; without any, nobody waits.
    """
    answers: Json = {}
    threads = []
    started, before = time.monotonic(), _asleep()
    for name, part in _PARTS.items():

        def work(name: str = name, part: Callable[[], Any] = part) -> None:
            answers[name] = guarded(part)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        threads.append(thread)
    until = started + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    stuck = _stuck(before, started + STUCK_S)
    late = {"unreadable": f"no answer in {LIMIT_S:g} s"}
    parts = with_kept({name: answers.get(name, late) for name in _PARTS})
    return {**parts, "stuck": stuck}


def health(request: Json) -> Json:
    """`health`: the section alone, with the seconds that it took."""
    started = time.monotonic()
    return {**read_health(), "took_s": round(time.monotonic() - started, 4)}
