"""What the driver says of each GPU's health: `nvidia-smi -q -x`, in one call.

Names of elements differ by version of the schema: clocks_throttle_reasons became
clocks_event_reasons with driver 535, power_readings became gpu_power_readings.
"""

from __future__ import annotations

import re
from typing import Any

from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run, which

TIMEOUT_S = 10.0
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


def read() -> list[Json]:
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
