"""The NVIDIA driver, its GPUs and the processes that compute on them."""

from __future__ import annotations

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.parallel import each
from node.core.run import TimedOut, run, which

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


def read() -> Json:
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
