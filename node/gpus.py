"""The NVIDIA driver, its GPUs and the processes that compute on them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from typing import Any

from node.core import files, proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, each, run, which

# What the engine's own start takes of a unified memory, as the last start showed it.

FRESH: Json = {"format": 1, "begun_unix_s": None, "available": None, "taken": None}


def start_memory_path() -> str:
    """Gives where it is kept between two starts."""
    return os.path.join(files.state_root(), "start-memory.json")


def load_start_memory() -> Json:
    """Gives when the last start began (None once it was measured), what was available then, and
    what the last measured one took, in bytes. Raises OSError.
    """
    return files.load_state(start_memory_path(), FRESH)


def start_memory_taken() -> int | None:
    """Gives the bytes that the last measured start took; None where none was. Raises OSError."""
    found = load_start_memory()["taken"]
    return found if isinstance(found, int) else None


# The host's memory and the kernel settings that the request names.

# categories that do not overlap; Shmem is in Cached
_HELD = (
    "MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables",
    "SecPageTables", "Percpu", "VmallocUsed", "Hugetlb",
)  # fmt: skip


def read_memory() -> Json:
    """Gives /proc/meminfo in bytes, and what the engine's last start took.

    `page_cache` is what dropping caches could free at most. `unaccounted` is in no category, such
    as pages that a driver took for a GPU without memory of its own.
    """
    kib: dict[str, int] = {}
    for line in proc.read_text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        kib[name] = int(rest.split()[0])
    if "MemAvailable" not in kib:
        raise CannotRead("/proc/meminfo has no MemAvailable")
    size = {name: value * 1024 for name, value in kib.items()}
    return {
        "total": size["MemTotal"],
        "free": size["MemFree"],
        "available": size["MemAvailable"],
        "shmem": size["Shmem"],
        # Shmem is part of Cached and cannot be dropped
        "page_cache": max(0, size["Cached"] + size["Buffers"] - size["Shmem"]),
        "dirty": size["Dirty"],
        "swap_total": size["SwapTotal"],
        "swap_free": size["SwapFree"],
        "unaccounted": max(0, size["MemTotal"] - sum(size.get(name, 0) for name in _HELD)),
        "start_took": start_memory_taken(),
    }


def memory_sysctls(names: Iterable[str]) -> dict[str, str]:
    """Gives the values of the named sysctls; one that this kernel lacks is left out."""
    values: dict[str, str] = {}
    for name in names:
        path = "/proc/sys/" + (name if "/" in name else name.replace(".", "/"))
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            values[name] = " ".join(file.read().split())
    return values


# The NVIDIA module that is loaded, and the versions of what user space has beside it.

LOADED = "/proc/driver/nvidia/version"
LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
SPECS = ("/etc/cdi/*", "/var/run/cdi/*")
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
_IN_SPEC = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)\b")


def _libraries(folders: tuple[str, ...]) -> list[str]:
    """Gives the versions of libnvidia-ml that lie in the linker's folders."""
    found = set()
    for folder in folders:
        for path in glob.glob(f"{folder}/libnvidia-ml.so.*"):
            version = path.rpartition(".so.")[2]
            if _VERSION.fullmatch(version) and os.path.exists(path):
                found.add(version)
    return sorted(found)


def read_driver(
    loaded: str = LOADED,
    libraries: tuple[str, ...] = LIBRARIES,
    specs: tuple[str, ...] = SPECS,
) -> Json:
    """Gives the loaded module's version (None: no module), the libraries', and the CDI specs'."""
    line = proc.read_text(loaded).partition("\n")[0]
    version = _VERSION.search(line)
    cdi = {}
    for path in sorted(path for pattern in specs for path in glob.glob(pattern)):
        named = sorted(set(_IN_SPEC.findall(proc.read_text(path))))
        if named and "nvidia" in os.path.basename(path):
            cdi[path] = named
    return {
        "module": version[1] if version else None,
        "libraries": _libraries(libraries),
        "cdi": cdi,
    }


TIMEOUT_S = 10.0
GPU_FIELDS = (
    "index,uuid,name,driver_version,memory.total,memory.used,memory.free,compute_cap,pci.bus_id"
)
APP_FIELDS = "gpu_uuid,pid,process_name,used_memory"
_NOT_REPORTED = ("N/A", "NOT SUPPORTED", "NOT AVAILABLE")


def reported(value: str) -> str | None:
    """Gives the value, or None for `[N/A]` and `Not Supported`.

    Raises CannotRead for a value that names a fault, such as `[GPU requires reset]`.
    """
    plain = value.strip().strip("[]").upper()
    if plain in _NOT_REPORTED:
        return None
    if value.strip().startswith("[") or plain.startswith(("ERR!", "UNKNOWN ERROR")):
        raise CannotRead(f"nvidia-smi reports {value.strip()}: the GPU or its driver is at fault")
    return value.strip()


def mib(value: str) -> int | None:
    """Gives a MiB column as a number, or None when it is not reported."""
    text = reported(value)
    if text is None:
        return None
    try:
        return int(text.split()[0])
    except (ValueError, IndexError):
        raise CannotRead(f"nvidia-smi printed {value!r} where MiB stand") from None


def parse_gpus(text: str) -> list[Json]:
    """Gives the rows of --query-gpu=GPU_FIELDS (csv,noheader,nounits)."""
    found: list[Json] = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 9:
            raise CannotRead(f"nvidia-smi printed an unknown line: {line.strip()[:120]}")
        found.append(
            {
                "index": int(cells[0]),
                "uuid": cells[1],
                "name": cells[2],
                "driver_version": cells[3],
                "memory_total_mib": mib(cells[4]),
                "memory_used_mib": mib(cells[5]),
                "memory_free_mib": mib(cells[6]),
                "compute_cap": reported(cells[7]),
                "pci_bus_id": reported(cells[8]),
            }
        )
    return found


def parse_apps(text: str) -> list[Json]:
    """Gives the rows of --query-compute-apps=APP_FIELDS, each with its process's identity."""
    found: list[Json] = []
    for line in filter(str.strip, text.splitlines()):
        head, _, used = line.rpartition(",")
        cells = head.split(",", 2)
        if len(cells) != 3 or not cells[1].strip().isdigit():
            raise CannotRead(f"nvidia-smi printed an unknown process: {line.strip()[:120]}")
        pid = int(cells[1])
        stat = proc.stat(pid)
        found.append(
            {
                "gpu_uuid": cells[0].strip(),
                "pid": pid,
                "process_name": cells[2].strip(),
                "used_mib": mib(used),
                "start_ticks": stat.start_ticks if stat else None,
                "container_id": proc.container_of(proc.cgroup(pid)),
            }
        )
    return found


def _query(what: str) -> str:
    """Gives the csv of one nvidia-smi query. Raises CannotRead with the tool's own message."""
    try:
        done = run(["nvidia-smi", what, "--format=csv,noheader,nounits"], TIMEOUT_S)
    except TimedOut:
        raise CannotRead(
            f"nvidia-smi did not answer in {TIMEOUT_S:g} s: driver hang, reboot the host"
        ) from None
    if done.rc != 0:
        lines = [line.strip() for line in (done.out + "\n" + done.err).splitlines()]
        said = " ".join(filter(None, lines))[:300] or "no message"
        raise CannotRead(f"nvidia-smi failed ({done.rc}): {said}")
    return done.out


def is_stand_in(path: str) -> bool:
    """Gives True when the nvidia-smi at `path` is the rehearsal hosts' labelled stand-in."""
    with open(path, "rb") as file:
        return b"rigbook stand-in" in file.read(300)


def read_gpus() -> Json:
    """Gives driver, GPUs and compute processes. Raises CannotRead when any is unknown."""
    path = which("nvidia-smi")
    if path is None:
        raise CannotRead("nvidia-smi not found")
    wanted = (f"--query-gpu={GPU_FIELDS}", f"--query-compute-apps={APP_FIELDS}")
    gpu_text, app_text = each(_query, wanted, 2)
    gpus = parse_gpus(gpu_text)
    if not gpus:
        raise CannotRead("nvidia-smi lists no GPU")
    return {
        "stand_in": is_stand_in(path),
        "driver_version": gpus[0]["driver_version"],
        "gpus": gpus,
        "processes": parse_apps(app_text),
    }


# What the driver says of each GPU's health: `nvidia-smi -q -x`, in one call.
#
# Names of elements differ by version of the schema: clocks_throttle_reasons became
# clocks_event_reasons with driver 535, power_readings became gpu_power_readings.

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# what stands in a field of a GPU that does not answer; "Unknown Error" stands in those of good ones
_FAULTS = ("GPU requires reset", "GPU is lost")
_END = "</nvidia_smi_log>"


def _text(gpu: Any, *paths: str) -> str | None:
    """Gives the text of the first element that is reported, None for N/A and its kind."""
    for path in paths:
        text = (gpu.findtext(path) or "").strip()
        if text and not text.upper().startswith(("N/A", "NOT ", "[", "UNKNOWN", "REQUESTED")):
            return text
    return None


def _number(gpu: Any, *paths: str) -> float | None:
    """Gives the number of `39 C`, `16x` or `700.00 W`."""
    found = _NUMBER.match(_text(gpu, *paths) or "")
    return float(found[0]) if found else None


def _count(gpu: Any, *paths: str) -> int | None:
    value = _number(gpu, *paths)
    return None if value is None else int(value)


def _yes(gpu: Any, *paths: str) -> bool | None:
    """Gives True when one of the elements says so, None when none is reported."""
    texts = [text.lower() for path in paths if (text := _text(gpu, path)) is not None]
    return any(text in ("yes", "enabled", "active") for text in texts) if texts else None


def _total(gpu: Any, *paths: str) -> int | None:
    """Gives the sum of the counters that are there; None when none is reported."""
    values = [value for value in (_count(gpu, path) for path in paths) if value is not None]
    return sum(values) if values else None


def _fault(gpu: Any) -> str | None:
    """Gives why the driver will not use it; before driver 560 there is no gpu_recovery_action."""
    if _yes(gpu, "gpu_reset_status/reset_required"):
        return "reset required"
    texts = ((row.text or "").strip().strip("[]") for row in gpu.iter())
    return next((text for text in texts if text in _FAULTS), None)


def _reasons(gpu: Any) -> list[str]:
    """Gives the reasons that hold the clock down now, such as hw_slowdown."""
    found: list[str] = []
    for block in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for row in gpu.find(block) if gpu.find(block) is not None else ():
            if (row.text or "").strip() == "Active":
                found.append(re.sub(r"^clocks_(event|throttle)_reasons?_", "", row.tag))
    return found


def parse(text: str) -> list[Json]:
    """Gives a row for each GPU. Raises CannotRead for what is no XML of nvidia-smi.

    Warnings such as `infoROM is corrupted at gpu …` stand before it or behind it.
    """
    from xml.etree import ElementTree  # 8 ms, on hosts with a driver alone

    start, end = max(text.find("<"), 0), text.find(_END)
    try:
        root = ElementTree.fromstring(text[start:] if end < 0 else text[start : end + len(_END)])
    except ElementTree.ParseError as error:
        raise CannotRead(f"nvidia-smi -q -x printed no XML: {error}") from None
    return [_row(gpu) for gpu in root.iter("gpu")]


def _row(gpu: Any) -> Json:
    volatile, aggregate = "ecc_errors/volatile/", "ecc_errors/aggregate/"
    link = "pci/pci_gpu_link_info/"
    power = ("gpu_power_readings/", "power_readings/", "module_power_readings/")
    uncorrected = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded",
                   "dram_uncorrectable", "double_bit/total")  # fmt: skip
    return {
        "bus_id": gpu.get("id") or "",
        "name": _text(gpu, "product_name"),
        "persistence": _yes(gpu, "persistence_mode"),
        "display": _yes(gpu, "display_active"),
        "recovery": _fault(gpu) or _text(gpu, "gpu_recovery_action"),
        "ecc_now": _total(gpu, *(volatile + name for name in uncorrected)),
        "ecc_ever": _total(gpu, *(aggregate + name for name in uncorrected)),
        "sram_over": _yes(gpu, aggregate + "sram_threshold_exceeded"),
        "remapped": _count(gpu, "remapped_rows/remapped_row_unc"),
        "remap_pending": _yes(
            gpu, "remapped_rows/remapped_row_pending", "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist", "ecc_errors/channel_repair_pending",
            "ecc_errors/tpc_repair_pending",
        ),
        "remap_failed": _yes(
            gpu, "remapped_rows/remapped_row_failure", "ecc_errors/unrepairable_memory"
        ),
        "reasons": _reasons(gpu),
        "temp_c": _number(gpu, "temperature/gpu_temp"),
        "slow_c": _number(gpu, "temperature/gpu_temp_slow_threshold"),
        "margin_c": _number(gpu, "temperature/gpu_temp_tlimit"),
        "slow_margin_c": _number(gpu, "temperature/gpu_temp_slow_tlimit_threshold"),
        "power_w": _number(
            gpu, *(at + key for at in power
                   for key in ("instant_power_draw", "average_power_draw", "power_draw"))),
        "power_limit_w": _number(
            gpu, *(at + key for at in power for key in ("current_power_limit", "power_limit"))),
        "usual_limit_w": _number(gpu, *(at + "default_power_limit" for at in power)),
        "clock_mhz": _count(gpu, "clocks/sm_clock"),
        "max_clock_mhz": _count(gpu, "max_clocks/sm_clock"),
        "busy_percent": _count(gpu, "utilization/gpu_util"),
        "link_gen": _count(gpu, link + "pcie_gen/current_link_gen"),
        "max_link_gen": _count(gpu, link + "pcie_gen/max_link_gen"),
        "replays": _count(gpu, "pci/replay_counter"),
    }  # fmt: skip


def gpu_health() -> list[Json]:
    """Gives the GPUs' rows; none on a host without nvidia-smi, which `gpus` of the snapshot tells.

    Raises CannotRead with the tool's own message.
    """
    if which("nvidia-smi") is None:
        return []
    try:
        done = run(["nvidia-smi", "-q", "-x"], TIMEOUT_S)
    except TimedOut:
        raise CannotRead(f"nvidia-smi -q did not answer in {TIMEOUT_S:g} s") from None
    if done.rc != 0 and _END not in done.out:  # 14: all of it, and a warning
        said = " ".join((done.out + " " + done.err).split())[:300]
        raise CannotRead(f"nvidia-smi -q failed ({done.rc}): {said or 'no message'}")
    return parse(done.out)
