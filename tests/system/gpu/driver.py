"""Cases of single parts on the real driver, without vLLM: reap, and a library under its users."""

from __future__ import annotations

from tests.system.gpu.rig_host import PYTHON, ROOT, Rig

FOLDER = ROOT / "tests" / "system" / "gpu"


def reap(rig: Rig) -> str:
    """Orphans with memory of the GPU are ended, those with a live parent are spared."""
    rig.stopped()
    text = rig.on(f"cd {ROOT} && HOME=/root {PYTHON} {FOLDER}/driver_reap.py 15 2>&1", check=False)
    rig.note("reap", text)
    assert "all checks held" in text, text.splitlines()[-1:]
    seconds = [line.rpartition(" ")[2] for line in text.splitlines() if "memory free:" in line]
    return f"memory free {seconds[0]} s after the call by TERM, {seconds[1]} s by KILL"


def library(rig: Rig) -> str:
    """A preload library that limits memory, as HAMi's does, swapped under five CUDA processes."""
    rig.stopped()
    text = rig.on(f"cd {ROOT} && HOME=/root {PYTHON} {FOLDER}/driver_library.py 2>&1", check=False)
    rig.note("library", text)
    assert text.endswith("as expected"), text.splitlines()[-1:]
    return "5 of 5 alive with 512 MiB, a new process gets 1024 MiB"
