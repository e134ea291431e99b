"""Cases of a rig that serves: start, looks, deaths, backup."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import yaml

from deploys.plans import measure
from facts.endpoint import Endpoint
from facts.measure import acceptance, scrape
from lab import gpu
from lab.gpu import BROKEN_VERSION
from lab.gpu_wheels import VERSION
from schema.measure import Acceptance, BenchRun, SoakRun
from tests.system.gpu.holders import hold, release
from tests.system.gpu.rig_host import IDLE_MIB, PORT, RECIPE, ROOT, UNIT, VENV, Rig, tail

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


# Cases of a rig that is measured: bench with speculative decoding, and a soak.

# the engine logs what was accepted every ten seconds in which something was
LOGGED_S = 25
# vllm/v1/spec_decode/metrics.py of 0.23
LINE = re.compile(
    r"Mean acceptance length: ([\d.]+),.* Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: ([\d., ]+),"
)
AHEAD = 3
SPECULATIVE = {"method": "ngram_gpu", "num_speculative_tokens": AHEAD, "prompt_lookup_max": 4,
               "prompt_lookup_min": 2}  # fmt: skip


def bench(rig: Rig) -> str:
    """A sweep with n-gram speculation: what was accepted, by position, is what vLLM's log says."""
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["profiles"]["speculative"] = {
        "description": "n-gram speculation", "vllm_serve": {"speculative_config": SPECULATIVE},
    }  # fmt: skip
    RECIPE.write_text(yaml.safe_dump(recipe))
    done = rig.deploy("serve", "profile=speculative")
    assert done.rc == 0, tail(done)
    endpoint = Endpoint(f"http://{gpu.HOST}:{PORT}", "gpu")
    time.sleep(LOGGED_S)
    before, since = scrape(endpoint), rig.on("date '+%F %T'")
    done = rig.deploy("bench", "profile=speculative", "streams=1,4", "tokens=200", "contexts=512",
                      "rounds=10")  # fmt: skip
    assert done.rc == 0, tail(done)
    run = _newest(rig)
    assert run.complete and run.acceptance, run.doubts
    assert [len(point.rates) for point in run.points] == [10, 10], run.points
    time.sleep(LOGGED_S)
    whole = acceptance(before, scrape(endpoint))
    log = rig.on(f"journalctl -u {UNIT} --since '{since}' -o cat --no-pager")
    logged = _logged([found for line in log.splitlines() if (found := LINE.search(line))])
    assert whole and whole.accepted > 100, f"too little was accepted: {whole}"
    assert (logged.accepted, logged.draft_tokens) == (whole.accepted, whole.draft_tokens)
    # the log rounds its shares of each ten seconds to three places
    pairs = list(zip(logged.unconditional, whole.unconditional, strict=True))
    assert all(abs(one - other) < 0.002 for one, other in pairs), pairs
    other = next((line.strip() for line in done.text.splitlines() if "1 stream by" in line), "")
    assert other.endswith("they agree"), tail(done)
    shares = ", ".join(f"{share:.1%}" for share in run.acceptance.unconditional)
    gpus = [gpu for row in run.machines for sample in row.samples for gpu in sample.gpus]
    assert any(gpu.power_w for gpu in gpus), "no sample has the card's power"
    rates = "; ".join(f"{p.streams} {sum(p.rates) / len(p.rates):.0f} tok/s" for p in run.points)
    return f"{rates}; {other}; accepted {shares} of all drafts, as the log has it"


def _newest(rig: Rig) -> BenchRun:
    path = max((ROOT / measure.HISTORY / "gputower").glob("*-bench-*.json"))
    rig.note("document", path.read_text())
    return BenchRun.model_validate_json(path.read_text())


def _logged(lines: list[re.Match[str]]) -> Acceptance:
    """The sums of the log's lines; each has shares of its own drafts."""
    accepted, drafted, drafts = 0, 0, 0.0
    positions = [0.0] * AHEAD
    for line in lines:
        taken, made = int(line[2]), int(line[3])
        # every draft has as many tokens as are asked for
        steps = made / AHEAD
        accepted, drafted, drafts = accepted + taken, drafted + made, drafts + steps
        for position, share in enumerate(line[4].split(",")):
            positions[position] += float(share) * steps
    return Acceptance(
        drafts=round(drafts), draft_tokens=drafted, accepted=accepted,
        per_position=tuple(round(value) for value in positions),
    )  # fmt: skip


def soak(rig: Rig) -> str:
    """A minute at four streams: temperature, power, clock and memory of the card in each sample."""
    rig.serving()
    done = rig.deploy("soak", "profile=speculative", "seconds=60", "streams=4")
    path = max((ROOT / measure.HISTORY / "gputower").glob("*-soak-*.json"))
    run = SoakRun.model_validate_json(path.read_text())
    assert run.completed and not run.failed, tail(done)
    gpus = [gpu for row in run.machines for sample in row.samples for gpu in sample.gpus]
    assert len(gpus) >= 10 and all(gpu.power_w and gpu.temp_c for gpu in gpus), gpus[:1]
    verdict = next((line.strip() for line in done.text.splitlines() if "memory: " in line), "")
    assert verdict, tail(done)
    hottest, power = max(gpu.temp_c or 0 for gpu in gpus), max(gpu.power_w or 0 for gpu in gpus)
    return f"{run.completed} answers, {hottest:.0f} C, {power:.0f} W; {verdict}"


# The case of an engine that is silent: a kernel that does not end, and the watch's answer.

SIGN = "/run/rigbook-gpu-spin"
STATE = "/var/lib/rigbook/watch/state.json"
SILENT_S, INTERVAL_S = 30, 10


def wedge(rig: Rig) -> str:
    """/health says 200 while no step ends: named, its evidence kept, the engine restarted."""
    rig.serving()
    rig.on(f"rm -f {STATE} {SIGN}")
    done = rig.deploy("watch", f"interval={INTERVAL_S}", f"silent_s={SILENT_S}", "restart=true")
    assert done.rc == 0, tail(done)
    try:
        (before,) = rig.values("InvocationID")
        rig.on(f"touch {SIGN}")
        rig.wait("it spins", 20, lambda: "blocks spin for" in _log(rig))
        assert rig.on("curl -s -m 5 -o /dev/null -w '%{http_code}' localhost:8000/health") == "200"
        restarted = rig.wait("the watch's restart", 200, lambda: _silence(rig)["restarts"])
        rig.on(f"rm -f {SIGN}")
        bundle = rig.on("ls /var/lib/rigbook/evidence | tail -1")
        there = rig.on(f"ls /var/lib/rigbook/evidence/{bundle}")
        assert "processes.txt" in there and "summary.json" in there, there
        answers = rig.wait("a real completion", 200, rig.answers)
        assert rig.values("InvocationID") != [before]
        count = len(there.split())
        return (
            f"restarted after {restarted:.0f} s, evidence of {count} files kept, answers "
            f"{answers:.0f} s later"
        )
    finally:
        rig.on(f"rm -f {SIGN}")
        rig.deploy("watch", "remove=true")


def _log(rig: Rig) -> str:
    return rig.on(f"journalctl -u {UNIT} -n 50 --no-pager -o cat")


def _silence(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.on(f"cat {STATE}"))["silence"]
    return found


# Cases of a machine with two GPUs: tensor parallel 2 with NCCL between real cards.
#
# NVLink multicast stays off by three variables of the recipe: a unit has an environment of its
# own.


def pair(rig: Rig) -> str:
    """Two ranks serve; a second run changes nothing; one worker killed, both come back."""
    use_both()
    rig.stopped()
    done = rig.deploy("serve")
    assert done.rc == 0 and "COMMITTED" in done.text, tail(done)
    held = [int(row[0]) for row in rig.smi("--query-gpu=memory.used")]
    assert min(held) > 1000, held
    assert rig.deploy("serve").is_unchanged
    worker = rig.computing("Worker")[-1]
    rig.on(f"kill -9 {worker}")
    rig.wait("it is named", 20, lambda: "nothing blocks" not in rig.deploy("doctor").text)
    back = rig.came_back(240)
    stop = rig.deploy("stop")
    assert stop.rc == 0 and rig.used() < IDLE_MIB, tail(stop)
    return f"{held} MiB; serve {done.seconds:.0f} s; a worker's death {back:.0f} s"


def one_of_two(rig: Rig) -> str:
    """Another program on the second card alone: serve refuses, and names card and pid."""
    use_both()
    rig.stopped()
    hold(rig, "60000", "1")
    try:
        (pid,) = rig.computing()
        done = rig.deploy("serve")
        assert done.rc != 0 and "memory-short" in done.text, tail(done)
        assert f"pid {pid}" in done.text and "GPU 1" in done.text, tail(done)
        return f"refused in {done.seconds:.1f} s"
    finally:
        release(rig)


def use_both() -> None:
    """The recipe for two ranks on one host."""
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["vllm_serve"] |= BOTH
    recipe["env"] |= MULTICAST_OFF
    RECIPE.write_text(yaml.safe_dump(recipe))


BOTH = {
    "tensor_parallel_size": 2, "distributed_executor_backend": "mp",
    "disable_custom_all_reduce": True,
}  # fmt: skip
MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"
}  # fmt: skip


# Cases of the installation: backup, an upgrade that cannot start, the way back from a backup.


def backup(rig: Rig) -> str:
    """A backup of the venv, read back."""
    done = rig.deploy("backup")
    assert done.rc == 0, tail(done)
    read = rig.deploy("backup", "verify=all")
    assert read.rc == 0, tail(read)
    size = rig.on(f"du -smL {VENV} | cut -f1")
    return f"{size} MiB in {done.seconds:.1f} s, read back in {read.seconds:.1f} s"


def upgrade(rig: Rig) -> str:
    """Another release, whose core cannot start: two starts, and the former one serves again."""
    rig.serving()
    done = rig.deploy("upgrade", f"version={BROKEN_VERSION}")
    assert done.rc != 0 and "serves again" in done.text, tail(done)
    assert "NCCL error: unhandled cuda error" in done.text, "the cause is not shown"
    assert rig.on(f"readlink {VENV}").endswith(f"/{VERSION}") and rig.answers()
    newest = rig.newest()
    assert (newest["deploy"], newest["status"]) == ("upgrade", "ROLLED_BACK")
    assert rig.deploy("serve").is_unchanged
    return f"{VERSION} serves again after {done.seconds:.1f} s, the cause of the failure shown"


def restore(rig: Rig) -> str:
    """A deleted program: named, and the backup brings it back with its tree."""
    rig.on(f"rm {VENV}/bin/vllm && systemctl stop rigbook-engine")
    named = rig.deploy("doctor").text
    assert "venv-entry-missing" in named
    done = rig.deploy("rollback", "backup=last")
    assert done.rc == 0 and rig.answers(), tail(done)
    return f"answers {done.seconds:.1f} s after the command"
