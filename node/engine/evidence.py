"""What a silent engine looked like, kept before a restart takes it away: one bounded bundle.

Nothing here stops, signals or writes to the engine. Python's faulthandler is not asked: vLLM
registers no signal for it, and SIGUSR1 ends a process that does not take it (signal(7)).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from node import processes, snapshot
from node.core import files, owner, proc
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.run import TimedOut, run, which
from node.core.systemctl import systemctl
from node.engine import answer, peer
from node.engine.answer import Scrape, ask_now
from node.engine.config import Engine
from node.gpus import reported
from node.rules.engine import Reply
from node.rules.secret import MASK, masked_line

FILE_BYTES = 256 * 1024
# all parts are made at the same time; one that hangs is left out, and summary.json says so
PART_S = 45.0
TOOL_S = 10.0
MAX_PROCESSES, MAX_THREADS = 12, 40
LOG_LINES = "1000"
# of /proc/PID/task/TID: where the kernel has the thread, and what it was asked for (proc(5))
_OF_A_THREAD = ("wchan", "syscall", "stack")
_OF_A_PROCESS = ("status", "io", "limits")


class Part(NamedTuple):
    """A file of the bundle: who makes its text.

    Of a log the end is kept, of the rest the beginning; in a log anybody may have written a key.
    """

    make: Callable[[], str]
    log: bool = False


def parts(engine: Engine) -> dict[str, Part]:
    """Gives the files of a bundle about the head's engine, by name."""
    return {
        "metrics.txt": Part(lambda: of_metrics(engine.endpoint.url if engine.endpoint else "")),
        "engine.log": Part(lambda: _journal("-u", engine.unit), log=True),
        "snapshot.json": Part(lambda: _snapshot(engine)),
        **of_the_host(),
    }


def of_the_host() -> dict[str, Part]:
    """Gives the files that say how the host and the engines on it are."""
    return {
        "processes.txt": Part(_processes),
        "python-stacks.txt": Part(_stacks),
        "kernel.log": Part(lambda: _journal("-k"), log=True),
        "sockets.txt": Part(lambda: _tool("ss", "-tnoi")),
        "nvidia-smi.txt": Part(lambda: _tool("nvidia-smi", "-q")),
    }


def keep(what: str, about: Json, made: Mapping[str, Part]) -> str:
    """Writes a bundle about `what`; gives its path. Raises OSError where it cannot be written.

    `about` is what was seen, for summary.json. Secrets of the engine are masked in every file.
    """
    now = time.time()
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
    path = files.begin_bundle(f"{name}-{what}")
    secrets = _secrets()
    texts: dict[str, str] = {}
    missing: Json = {}
    jobs = []
    for file, part in made.items():

        def work(file: str = file, part: Part = part) -> None:
            try:
                texts[file] = part.make()
            except OSError as error:
                missing[file] = io_reason(error)
            except (NodeError, CannotRead, TimedOut) as error:
                missing[file] = str(error)

        # daemon: a reader that is stuck in the kernel must not keep the restart back
        thread = threading.Thread(target=work, name=file, daemon=True)
        thread.start()
        jobs.append((file, thread))
    deadline = time.monotonic() + PART_S
    for file, thread in jobs:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            missing[file] = f"nothing in {PART_S:g} s"
    for file, text in list(texts.items()):
        log = made[file].log
        _write(os.path.join(path, file), cut(masked(text, secrets, log), log))
    summary = {**about, "missing": missing, "bytes_of_a_file": FILE_BYTES}
    text = json.dumps(summary, indent=1, sort_keys=True) + "\n"
    _write(os.path.join(path, "summary.json"), masked(text, secrets, False).encode())
    return files.finish_bundle(path)


def cut(text: str, tail: bool) -> bytes:
    """Gives the text's beginning, or its end, within the bytes of a file."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= FILE_BYTES else raw[-FILE_BYTES:] if tail else raw[:FILE_BYTES]


def masked(text: str, secrets: list[str], log: bool) -> str:
    """Gives the text without the values of secrets; of a log, without what follows their names."""
    for value in secrets:
        text = text.replace(value, MASK)
    return "\n".join(map(masked_line, text.split("\n"))) if log else text


def _secrets() -> list[str]:
    """Gives the values of the engine's secrets, longest first: one may be part of another."""
    found = [value for quoted in (False, True)
             for value in owner.values_of(answer.key_path(), quoted)]  # fmt: skip
    return sorted({value for value in found if len(value) > 3}, key=len, reverse=True)


def _write(path: str, raw: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(raw)


def _tool(*argv: str) -> str:
    try:
        done = run(argv, TOOL_S)
    except FileNotFoundError:
        raise CannotRead(f"{argv[0]} is not installed") from None
    return done.out + done.err


def _journal(*words: str) -> str:
    return _tool("journalctl", "-q", "--no-pager", "-o", "short-iso", "-n", LOG_LINES, *words)


def of_metrics(url: str) -> str:
    """Gives the text of /metrics below a URL. Raises CannotRead."""
    text, why = answer.fetch_metrics(url)
    if text is None:
        raise CannotRead(why)
    return text


def _snapshot(engine: Engine) -> str:
    asked: Json = {"units": [engine.unit], "peers": list(engine.peers)}
    if engine.fabric is not None:
        asked.update(fabric_device=engine.fabric.device, fabric_mtu=engine.fabric.mtu)
    return json.dumps(snapshot.collect(asked), indent=1, sort_keys=True) + "\n"


def _pids() -> list[Json]:
    """Gives every vLLM process of this host, ascending by pid, masked as a snapshot has them."""
    return processes.read_processes()[:MAX_PROCESSES]


def _processes() -> str:
    """Gives what /proc says of each engine process and of its threads."""
    out: list[str] = []
    for row in _pids():
        out += [f"== {row['pid']} {row['comm']} {row['cgroup']}", " ".join(row["argv"])]
        base = f"/proc/{row['pid']}"
        out += [f"-- {name}\n{_read(f'{base}/{name}')}" for name in _OF_A_PROCESS]
        tids: list[str] = []
        with contextlib.suppress(OSError):
            tids = os.listdir(f"{base}/task")
        for tid in sorted(tids, key=int)[:MAX_THREADS]:
            where = f"{base}/task/{tid}"
            out.append(f"-- thread {tid} {_read(f'{where}/comm')}")
            out += [f"{name}: {_read(f'{where}/{name}')}" for name in _OF_A_THREAD]
    return "\n".join(out) + "\n"


def _stacks() -> str:
    """Gives the Python stacks by the host's py-spy: a venv's is its owner's, this is root.

    It reads memory and does not stop the process (--nonblocking): one that is stopped or stuck
    would keep it waiting.
    """
    tool = which("py-spy")
    if tool is None:
        raise CannotRead("py-spy is not installed")
    out: list[str] = []
    for row in _pids():
        out.append(f"== {row['pid']} {row['comm']}")
        try:
            out.append(_tool(tool, "dump", "--nonblocking", "--pid", str(row["pid"])))
        except TimedOut as error:
            out.append(str(error))
    return "\n".join(out) + "\n"


def _read(path: str) -> str:
    return proc.read_text(path).strip() or "-"


# The engine of this host as the watch sees it: its unit, its /metrics, its GPUs.

GPU_FIELDS = "index,uuid,utilization.gpu,power.draw,power.limit"
GPU_S = 5.0
# A GPU that computes draws more than this of its limit; a GB10 reports no limit, and stays below
# 30 W while it is idle (eugr/spark-vllm-docker#260).
IDLE_SHARE, IDLE_W = 0.35, 30.0
# what nvcc, ninja and Triton start, by their names in /proc/PID/stat
COMPILERS = frozenset(("nvcc", "cicc", "cudafe++", "ptxas", "nvlink", "ninja", "cc1plus", "cc1"))


class OwnUnit:
    """node.engine.silence.Target of a head whose engine rigbook installed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.unit

    def ask(self, wait_s: float) -> Reply:
        """Asks; the key goes to our own engine alone."""
        return ask_now(self.engine, wait_s)

    def start(self) -> str | None:
        """Gives the unit's invocation while it is active: it has answered once since its start."""
        text = systemctl("show", "-p", "ActiveState,InvocationID", "--", self.name)
        found = dict(line.partition("=")[::2] for line in text.splitlines())
        return found.get("InvocationID", "") if found.get("ActiveState") == "active" else None

    def scrape(self) -> Scrape | str:
        """Gives a reading of the endpoint's /metrics."""
        return answer.scrape_metrics(self.engine.endpoint.url if self.engine.endpoint else "")

    def hints(self) -> tuple[bool | None, bool]:
        """Gives what nvidia-smi and /proc say."""
        return gpus_idle(self.engine), compiles()

    def evidence(self, reason: str) -> str:
        """Keeps a bundle of this host."""
        engine = self.engine
        about = {"rig": engine.rig, "node": engine.node, "name": self.name, "reason": reason}
        return keep(self.name.partition(".")[0], about, parts(engine))

    def hindrance(self) -> str | None:
        """An operator is at work, or a peer's host does not answer on the fabric."""
        return peer.hindrance(self.engine, list(self.engine.peers))

    def restart(self) -> str | None:
        """Restarts the unit under the host's lock; the pair's check restarts the other half."""
        return peer.undisturbed(self.name, "it is silent", _restart)


def _restart(unit: str) -> None:
    """Restart the unit; the start limit counts crashes, and these have a budget of their own."""
    systemctl("reset-failed", unit)
    systemctl("restart", "--no-block", unit)


def compiles() -> bool:
    """Gives True while a compiler runs on this host."""
    return any(stat.comm in COMPILERS for stat in map(proc.stat, proc.pids()) if stat is not None)


def gpus_idle(engine: Engine) -> bool | None:
    """Gives whether every GPU of the engine idles; None where one of them does not say."""
    if not engine.needs_nvidia:
        return None
    try:
        done = run(
            ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"], GPU_S
        )
    except (FileNotFoundError, TimedOut):
        return None
    return gpu_idle(done.out, engine.memory.devices) if done.rc == 0 else None


def gpu_idle(text: str, devices: tuple[str, ...] | None) -> bool | None:
    """Gives whether the GPUs of nvidia-smi's rows idle: no kernel, and little power drawn."""
    found = False
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5:
            return None
        if devices is not None and not {cells[0], cells[1]} & set(devices):
            continue
        try:
            busy, draw, limit = (reported(cell) for cell in cells[2:])
            if busy is None or draw is None:
                return None
            low = float(draw) < (IDLE_W if limit is None else IDLE_SHARE * float(limit))
            if float(busy) > 0 or not low:
                return False
        except (CannotRead, ValueError):
            return None
        found = True
    return found or None
