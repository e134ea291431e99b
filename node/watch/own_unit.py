"""The engine of this host as the watch sees it: its unit, its /metrics, its GPUs."""

from __future__ import annotations

from node.core import proc
from node.core.errors import CannotRead
from node.core.run import TimedOut, run
from node.core.systemctl import systemctl
from node.engine import peer_watchdog
from node.engine.await_answer import ask_now
from node.engine.config import Engine
from node.rules.completion import Reply
from node.snapshot.gpus import reported
from node.watch import evidence, metrics
from node.watch.metrics import Scrape

GPU_FIELDS = "index,uuid,utilization.gpu,power.draw,power.limit"
GPU_S = 5.0
# A GPU that computes draws more than this of its limit; a GB10 reports no limit, and stays below
# 30 W while it is idle (eugr/spark-vllm-docker#260).
IDLE_SHARE, IDLE_W = 0.35, 30.0
# what nvcc, ninja and Triton start, by their names in /proc/PID/stat
COMPILERS = frozenset(("nvcc", "cicc", "cudafe++", "ptxas", "nvlink", "ninja", "cc1plus", "cc1"))


class OwnUnit:
    """node.watch.heal.Target of a head whose engine rigbook installed."""

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
        return metrics.scrape(self.engine.endpoint.url if self.engine.endpoint else "")

    def hints(self) -> tuple[bool | None, bool]:
        """Gives what nvidia-smi and /proc say."""
        return gpus_idle(self.engine), compiles()

    def evidence(self, reason: str) -> str:
        """Keeps a bundle of this host."""
        engine = self.engine
        about = {"rig": engine.rig, "node": engine.node, "name": self.name, "reason": reason}
        return evidence.keep(self.name.partition(".")[0], about, evidence.parts(engine))

    def hindrance(self) -> str | None:
        """An operator is at work, or a peer's host does not answer on the fabric."""
        return peer_watchdog.hindrance(self.engine, list(self.engine.peers))

    def restart(self) -> str | None:
        """Restarts the unit under the host's lock; the pair's check restarts the other half."""
        return peer_watchdog.undisturbed(self.name, "it is silent", _restart)


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
    return idle(done.out, engine.memory.devices) if done.rc == 0 else None


def idle(text: str, devices: tuple[str, ...] | None) -> bool | None:
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
