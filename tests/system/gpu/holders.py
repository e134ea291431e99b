"""Cases of memory that somebody else holds: engines started by hand, orphans, other programs."""

from __future__ import annotations

import math
import re

from node.rules.engine import CONTEXT_MIB
from tests.system.gpu.rig_host import (
    HAND_PORT,
    IDLE_MIB,
    MODEL,
    PYTHON,
    RECIPE,
    ROOT,
    VENV,
    Done,
    Rig,
    tail,
)

HAND = (
    f"env HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "
    f"VLLM_USE_FLASHINFER_SAMPLER=0 {VENV}/bin/vllm serve {MODEL} --served-model-name gpu "
    f"--port {HAND_PORT} --gpu-memory-utilization 0.3 --max-model-len 1024 --enforce-eager"
)
HOLD = ROOT / "tests" / "system" / "gpu" / "hold.py"
HOLD_LOG = "/home/rig/hold.log"
# what is left free of the card
FOREIGN_MIB = 40_000
# What vLLM may use, where the edge is looked for, and how far beside it each start is tried.
SHARE, BESIDE_MIB = 0.30, 300
# nvidia-smi gives used, free and reserved memory as whole MiB each.
ROUNDING_MIB = 3


def by_hand(rig: Rig) -> str:
    """An engine that a person started and that answers is foreign: named, and spared."""
    rig.stopped()
    rig.start(HAND, "/home/rig/hand.log")
    seconds = rig.wait("its answer", 150, lambda: rig.answers(HAND_PORT))
    named = rig.deploy("doctor").text
    (core,) = rig.computing("EngineCore")
    assert "foreign-engine" in named and "engine-orphan" not in named, "not told as foreign"
    dry = rig.deploy("restart", dry=True)
    assert f"end pid {core}" not in dry.text, "restart would end it"
    assert rig.answers(HAND_PORT)
    return f"started in {seconds:.0f} s, foreign to the doctor, spared by restart"


def orphan(rig: Rig) -> str:
    """Its server killed, its core is left with the memory: named, and restart ends it."""
    if not rig.answers(HAND_PORT):
        by_hand(rig)
    held = rig.used()
    (core,) = rig.computing("EngineCore")
    parent = rig.on(f"ps -o ppid= -p {core}")
    rig.on(f"kill -9 {parent}")
    rig.wait("its server is gone", 10, lambda: not rig.answers(HAND_PORT))
    assert core in rig.computing(), "the core ended with its server: no orphan"
    named = rig.deploy("doctor").text
    assert "engine-orphan" in named and f"pid {core}" in named, "the doctor does not name it"
    done = rig.deploy("restart")
    assert done.rc == 0 and "COMMITTED" in done.text, tail(done)
    assert f"pid {core}" in done.text and core not in rig.computing()
    assert len(rig.computing("EngineCore")) == 1
    return f"pid {core} with {held} MiB ended; restart answers after {done.seconds:.1f} s"


def foreign(rig: Rig) -> str:
    """Another program's memory: serve and restart refuse at once, and name it."""
    rig.stopped()
    hold(rig, str(rig.total() - FOREIGN_MIB))
    (pid,) = rig.computing()
    try:
        seconds = []
        for runbook in ("serve", "restart"):
            done = rig.deploy(runbook)
            seconds.append(done.seconds)
            assert done.rc != 0 and "memory-short" in done.text, tail(done)
            assert f"pid {pid}" in done.text, f"{runbook} does not name it"
            mend = [line for line in done.text.splitlines() if "mend:" in line]
            assert not any("deploys/stop.py" in line for line in mend), "told to stop our engine"
        assert rig.values("ActiveState") == ["inactive"]
        assert pid in rig.computing()
        return f"serve refused in {seconds[0]:.1f} s, restart in {seconds[1]:.1f} s; pid named"
    finally:
        release(rig)


def edge(rig: Rig) -> str:
    """The gate's number is vLLM's: below it serve refuses; a little above, where vLLM's own CUDA
    context is in the way, it warns and vLLM's reason is told; above that it serves.
    """
    rig.stopped()
    text = RECIPE.read_text()
    share = re.sub(r"(gpu_memory_utilization: )[\d.]+", rf"\g<1>{SHARE}", text)
    RECIPE.write_text(share)
    try:
        need = math.ceil((rig.used() + rig.free()) * SHARE)
        below = _with_free(rig, need - BESIDE_MIB)
        assert below.rc != 0 and "block memory-short" in below.text, tail(below)
        needed = re.search(r"needed (\d+) MiB", below.text)
        assert needed and abs(int(needed[1]) - need) <= ROUNDING_MIB, (need, tail(below))
        within = _with_free(rig, need + BESIDE_MIB)
        assert within.rc != 0 and "warn memory-short" in within.text, tail(within)
        said = re.search(
            r"root cause: ValueError: Free memory on device \S+ \(([\d.]+)/", within.text
        )
        assert said, tail(within)
        above = _with_free(rig, need + CONTEXT_MIB + 20)
        assert above.rc == 0 and "COMMITTED" in above.text, tail(above)
    finally:
        rig.deploy("stop")
        release(rig)
        RECIPE.write_text(text)
    taken = need + BESIDE_MIB - float(said[1]) * 1024
    return (
        f"{need} MiB needed; {BESIDE_MIB} MiB less is refused in {below.seconds:.1f} s, "
        f"{BESIDE_MIB} MiB more is told, vLLM's context took {taken:.0f} MiB; with "
        f"{CONTEXT_MIB + 20} MiB more it serves"
    )


def _with_free(rig: Rig, mib: int) -> Done:
    """A serve while a program leaves so many MiB free."""
    release(rig)
    hold(rig, "free", str(mib))
    return rig.deploy("serve")


def hold(rig: Rig, *amount: str) -> None:
    """Another program of root's takes memory of the GPU."""
    rig.on(f"rm -f {HOLD_LOG}")
    rig.start(f"sudo {PYTHON} {HOLD} {' '.join(amount)}", HOLD_LOG)
    rig.wait(
        "a program that holds it", 60, lambda: "held" in rig.on(f"cat {HOLD_LOG}", check=False)
    )


def release(rig: Rig) -> None:
    """End that program."""
    rig.on(f"pkill -f {HOLD}", check=False)
    rig.wait("the memory is free", 20, lambda: rig.used() < IDLE_MIB)
