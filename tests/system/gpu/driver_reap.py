"""reap on a real NVIDIA driver: run it as root on a machine with a GPU and PyTorch.

`python3 tests/system/gpu/driver_reap.py [GiB]` prints a transcript and exits 1 when something does
not hold. It starts engine-like processes of its own, ends one's parent, and calls `python3 -m
node`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PORT = 29501
CHANGE = {"id": "reap-on-gpu", "deploy": "restart", "operator": "test@device"}


def set_title(title: str) -> None:
    """Overwrite the argument area, as setproctitle does in vLLM's processes."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    raw = title.encode()[: end - start - 1]
    ctypes.memmove(start, raw.ljust(end - start, b"\0"), end - start)
    ctypes.CDLL(None).prctl(15, title.encode(), 0, 0, 0)


def worker(title: str, gib: int, port: int, ignore_term: bool, ready: str) -> None:
    """Hold memory of the GPU until ended."""
    import socket

    import torch

    if ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_title(title)
    listener = socket.socket()
    if port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
    kept = torch.zeros(gib << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    Path(ready).write_text(str(os.getpid()))
    while kept is not None:
        time.sleep(60)


def start(folder: Path, title: str, gib: int, port: int = 0, ignore_term: bool = False) -> Any:
    """Start a parent that starts a worker; gives (parent, worker's pid) once it holds memory."""
    ready = folder / f"ready-{time.monotonic_ns()}"
    call = f"{[title, gib, port, ignore_term, str(ready)]!r}"
    code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['worker'](*{call})"
    wait = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    parent = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
    until(lambda: ready.exists() and ready.read_text() != "", 120)
    pid = int(ready.read_text())
    until(lambda: any(row.split(",")[0].strip() == str(pid) for row in apps()), 30)
    return parent, pid


def until(condition: Any, seconds: float) -> float:
    """Wait for a condition; gives the seconds it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "not in its time"
        time.sleep(0.05)
    return time.monotonic() - begun


def smi(*words: str) -> str:
    """The output of nvidia-smi."""
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True).stdout.strip()


def apps() -> list[str]:
    """The GPU's processes: pid, name, MiB."""
    query = "--query-compute-apps=pid,process_name,used_memory"
    return smi(query, "--format=csv,noheader").splitlines()


def used() -> int:
    """Used memory of the first GPU, in MiB."""
    return int(smi("--query-gpu=memory.used", "--format=csv,noheader,nounits").splitlines()[0])


def show(what: str) -> None:
    """Print the GPU's memory and processes."""
    print(f"\n$ nvidia-smi ({what})\n  {used()} MiB used")
    for row in apps():
        print(f"  {row}")


def reap(state: Path, **more: object) -> Any:
    """Run the verb; gives its answer, with `drained_s`: until the driver shows less memory."""
    request = {"hold": False, "ports": [PORT], "term_s": 10, "settle_s": 20, **more}
    before, begun = used(), time.monotonic()
    seen: list[float] = []

    def watch() -> None:
        while not seen and time.monotonic() - begun < 60:
            if used() < before - 10000:
                seen.append(time.monotonic() - begun)

    watcher = threading.Thread(target=watch)
    if not more.get("dry"):
        watcher.start()
    print(f"\n$ python3 -m node reap '{json.dumps(request)}'")
    done = subprocess.run(
        [sys.executable, "-m", "node", "reap", json.dumps(request)], cwd=ROOT, text=True,
        env={**os.environ, "RIGBOOK_STATE": str(state)}, capture_output=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    for key in ("verdict", "evidence", "took_s", "error"):
        if answer.get(key) not in (None, ""):
            print(f"  {key}: {answer[key]}")
    for key in ("ended", "spared"):
        for row in answer.get(key, []):
            how = f"{row['how']}: " if "how" in row else ""
            print(f"  {key}: pid {row['pid']} {row['argv0']}: {how}{row['why']}")
    if watcher.ident:
        watcher.join()
        answer["drained_s"] = round(seen[0], 2) if seen else None
        print(f"  seconds from the call until the driver shows the memory free: "
              f"{answer['drained_s']}")  # fmt: skip
    return answer


def main(gib: int) -> None:
    """The run, with its checks."""
    folder = Path(tempfile.mkdtemp())
    machine = smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    print(
        f"date {time.strftime('%Y-%m-%d')}, kernel {os.uname().release}, GPU and driver: {machine}"
    )
    show("before")
    live_parent, live = start(folder, "VLLM::Worker_TP1", 2)
    for ignore_term, limits in ((False, {}), (True, {"term_s": 2})):
        parent, pid = start(folder, "VLLM::Worker_TP0", gib, PORT, ignore_term)
        print(
            f"\nan engine of {gib} GiB, {'ignores' if ignore_term else 'takes'} SIGTERM: pid {pid}"
        )
        parent.kill()
        parent.wait()
        show(f"parent {parent.pid} killed with -9")
        total = int(smi("--query-gpu=memory.total", "--format=csv,noheader,nounits"))
        want = {"vram_free_mib": total - 8000, **limits}
        dry = reap(folder / "state", dry=True, **want)
        assert [row["pid"] for row in dry["ended"]] == [pid] and dry["verdict"] == "orphans", dry
        done = reap(folder / "state", change=CHANGE, **want)
        assert done["verdict"] == "clean" and [row["pid"] for row in done["ended"]] == [pid], done
        assert done["ended"][0]["how"] == ("KILL" if ignore_term else "TERM")
        assert live in [row["pid"] for row in done["spared"]], done["spared"]
        show("after")
    assert Path(f"/proc/{live}").exists() and live_parent.poll() is None
    os.kill(live, signal.SIGKILL)
    live_parent.wait()
    show("the live one ended by the test")
    print("\nall checks held")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
