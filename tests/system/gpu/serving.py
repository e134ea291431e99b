"""Cases of a rig that serves: start, looks, deaths, backup."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

from tests.system.gpu.rig_host import IDLE_MIB, ROOT, UNIT, Rig, tail

DOCTOR_S, SNAPSHOT_S = 3.0, 0.3
SNAPSHOT = f"cd {ROOT} && python3 -m node snapshot '{{}}'"


def serve(rig: Rig) -> str:
    """The first start of the real vLLM, proven by a real completion."""
    done = rig.deploy("serve")
    assert done.rc == 0 and "COMMITTED" in done.text, tail(done)
    return f"COMMITTED with a real answer after {done.seconds:.1f} s"


def serve_again(rig: Rig) -> str:
    """A second run changes nothing."""
    done = rig.deploy("serve")
    assert done.is_unchanged, tail(done)
    return "no change"


def doctor(rig: Rig) -> str:
    """No false finding; the doctor and the snapshot in their times."""
    done = rig.deploy("doctor")
    assert done.rc == 0 and "nothing blocks" in done.text, tail(done)
    warned = [line.split()[1] for line in done.text.splitlines() if " warn " in line]
    assert done.seconds <= DOCTOR_S, f"doctor took {done.seconds:.2f} s"
    times, rows = [], []
    for _ in range(5):
        document = json.loads(rig.on(SNAPSHOT))
        times.append(document["took_s"])
        rows = document["health"]["gpus"]
    assert rows, "no health of a GPU in the snapshot"
    assert max(times) <= SNAPSHOT_S, f"snapshots took {times} s"
    return (
        f"doctor {done.seconds:.2f} s, warns {' '.join(warned) or 'of nothing'}; 5 snapshots with "
        f"health {min(times):.2f} to {max(times):.2f} s"
    )


def compare(rig: Rig) -> str:
    """What the snapshot says of each GPU, field by field, is what `nvidia-smi -q -x` says."""
    document = json.loads(rig.on(SNAPSHOT))
    tree = ElementTree.fromstring(rig.on("nvidia-smi -q -x"))
    section, health = document["gpus"], document["health"]["gpus"]
    cards = tree.findall("gpu")
    assert len(cards) == len(section["gpus"]) == len(health)
    pairs = [("driver", section["driver_version"], tree.findtext("driver_version"))]
    for row, state, card in zip(section["gpus"], health, cards, strict=True):
        memory, link = "fb_memory_usage/", "pci/pci_gpu_link_info/pcie_gen/"
        for name, path in (
            ("name", "product_name"), ("uuid", "uuid"), ("memory_total_mib", memory + "total"),
            ("memory_used_mib", memory + "used"), ("memory_free_mib", memory + "free"),
        ):  # fmt: skip
            pairs.append((name, row[name], card.findtext(path)))
        pairs.append(("pci_bus_id", row["pci_bus_id"], card.get("id")))
        for name, path in (
            ("persistence", "persistence_mode"),
            ("ecc_now", "ecc_errors/volatile/dram_uncorrectable"),
            ("remap_pending", "remapped_rows/remapped_row_pending"),
            ("remap_failed", "remapped_rows/remapped_row_failure"),
            ("margin_c", "temperature/gpu_temp_tlimit"), ("temp_c", "temperature/gpu_temp"),
            ("power_limit_w", "gpu_power_readings/current_power_limit"),
            ("max_clock_mhz", "max_clocks/sm_clock"), ("link_gen", link + "current_link_gen"),
            ("max_link_gen", link + "max_link_gen"), ("replays", "pci/replay_counter"),
        ):  # fmt: skip
            pairs.append((name, state[name], card.findtext(path)))
    for process in section["processes"]:
        shown = [
            (f"pid {process['pid']}", process["used_mib"], one.findtext("used_memory"))
            for card in cards
            for one in card.iter("process_info")
            if one.findtext("pid") == str(process["pid"])
        ]
        pairs += shown or [(f"pid {process['pid']}", process["used_mib"], "not there")]
    wrong = [f"{n}: {a} | {b}" for n, a, b in pairs if not _same(n, a, b)]
    assert not wrong, "; ".join(wrong)
    return f"{len(pairs)} fields the same"


# Between two calls a card's temperature may move.
MOVES = {"temp_c": 3.0, "margin_c": 3.0}


def _same(name: str, ours: object, theirs: str | None) -> bool:
    text = (theirs or "").strip()
    if ours is None:
        return not text or text.upper().startswith(("N/A", "[", "NOT", "REQUESTED", "UNKNOWN"))
    if isinstance(ours, bool):
        return ours == (text.lower() in ("yes", "enabled", "active"))
    if isinstance(ours, int | float):
        return abs(ours - float(text.split()[0])) <= MOVES.get(name, 0.5)
    return str(ours) == text


def kill_server(rig: Rig) -> str:
    """kill -9 of the API server: systemd starts the engine again, and one process holds memory."""
    (pid,) = rig.values("MainPID")
    rig.on(f"kill -9 {pid}")
    seconds = rig.came_back()
    assert len(rig.computing("EngineCore")) == 1
    return f"answers again after {seconds:.1f} s"


def kill_core(rig: Rig) -> str:
    """kill -9 of EngineCore: the API server ends, systemd starts the engine again."""
    (pid,) = rig.computing("EngineCore")
    rig.on(f"kill -9 {pid}")
    rig.wait("it is named", 20, lambda: "nothing blocks" not in rig.deploy("doctor").text)
    named = rig.deploy("doctor").text
    assert f"systemctl stop {UNIT}" not in named, "told to stop what systemd brings back"
    seconds = rig.came_back()
    return f"answers again after {seconds:.1f} s"


def stop(rig: Rig) -> str:
    """stop gives all the memory back."""
    done = rig.deploy("stop")
    assert done.rc == 0, tail(done)
    assert rig.used() < IDLE_MIB, f"{rig.used()} MiB in use after stop"
    return f"stop {done.seconds:.1f} s; {rig.used()} MiB in use"


def stop_loading(rig: Rig) -> str:
    """A stop in the middle of a load is a stop: in time, and no crash loop."""
    rig.on(f"systemctl start --no-block {UNIT}")
    rig.wait("it takes memory", 120, lambda: rig.used() > 1000)
    done = rig.deploy("stop")
    assert done.rc == 0, tail(done)
    state, result = rig.values("ActiveState", "Result")
    assert state == "inactive", f"{state} ({result})"
    named = rig.deploy("doctor").text
    assert "crash-loop" not in named, "told as a crash loop"
    rig.wait("the memory is free", 10, lambda: rig.used() < IDLE_MIB)
    return f"stop {done.seconds:.1f} s, {state}, {rig.used()} MiB in use"
