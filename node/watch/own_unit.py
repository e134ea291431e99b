"""The engine of this host as the watch sees it: its unit, its /metrics, its GPUs."""

from __future__ import annotations

from typing import Any

from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.core.systemctl import systemctl
from node.core.webhook import NO_ANSWER
from node.engine import config, peer_watchdog, port_holder
from node.engine.api_key import key_of
from node.engine.await_answer import ask_ours
from node.engine.completion import ask
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
        if self.engine.endpoint is None:
            return Reply(False, "this node has no endpoint", True)
        try:
            port_holder.look(self.engine)
        except CannotRead:
            # nobody listens, or docker does not say who: asked, and whoever answers gets no key
            return ask(self.engine.endpoint, wait_s)
        try:
            return ask_ours(self.engine, self.engine.endpoint, wait_s, key_of(self.engine))
        except NodeError as error:
            return Reply(False, str(error))

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


def answer(request: Any) -> Json:
    """`engine answer`: what this host's engine says to a completion now, asked on the host itself.

    Its own key goes to our engine alone. `made`: where nothing came in time, the tokens that it
    made for others meanwhile (null: it does not say). Read-only. Raises NodeError (no_engine).
    """
    body = validate.keys(request, "request", ("timeout_s",), ("timeout_s",))
    seconds = validate.number(body["timeout_s"], "timeout_s", 1, 600)
    own = OwnUnit(config.load())
    before = own.scrape()
    reply = own.ask(seconds)
    late, made = reply.detail == NO_ANSWER, None
    after = own.scrape() if late else before
    if late and isinstance(before, Scrape) and isinstance(after, Scrape):
        made = metrics.made(before, after)
    return {"answered": reply.ok, "detail": reply.detail, "final": reply.final,
            "model": reply.model, "wants_key": reply.wants_key, "late": late, "made": made,
            "where": own.engine.endpoint.url if own.engine.endpoint else ""}  # fmt: skip


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
