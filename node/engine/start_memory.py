"""Measures what the engine's own start takes of a unified memory before vLLM looks at it.

prelaunch sees what is available. Then docker, Python, CUDA and NCCL start, and vLLM says in its log
what is free to it: about 102 GiB where 110 to 111 were available (GLM-5.3-Flash-EXL3-2x#47).
"""

from __future__ import annotations

import re
import time

from node.core import log
from node.engine.config import Engine
from node.files import state_file
from node.rules.memory_need import GIB, MOST_TAKEN
from node.snapshot import start_memory, unit_log

# of a start that passes and of one that fails (vllm, v1/worker/gpu_worker.py and utils.py)
_SEEN = re.compile(r"Free memory on device (?:\S+ )?\((\d+(?:\.\d+)?)/[\d.]+ GiB\) on startup")


def note(available: int) -> None:
    """Keep what is available as a start begins, in bytes. A failure is logged, and no more."""
    try:
        before = start_memory.load()
        now = {**before, "begun_unix_s": int(time.time()), "available": available}
        state_file.save(start_memory.path(), now)
    except OSError as error:
        log.say(f"{start_memory.path()}: {error}", log.WARNING)


def measure(engine: Engine) -> None:
    """Compare what was available as the last start began with what vLLM then saw, and keep it.

    A start that vLLM said nothing of is passed over, and a difference above MOST_TAKEN: somebody
    else took that. A failure is logged.
    """
    try:
        state = start_memory.load()
        begun, available = state["begun_unix_s"], state["available"]
        if begun is None or available is None:
            return
        until = begun + int(engine.start_budget_s)
        for line in unit_log.between(engine.unit, begun, until):
            seen = _SEEN.search(line)
            taken = available - int(float(seen[1]) * GIB) if seen else None
            if taken is not None and 0 <= taken <= MOST_TAKEN:
                state["taken"] = taken
        state_file.save(start_memory.path(), {**state, "begun_unix_s": None})
    except OSError as error:
        log.say(f"{start_memory.path()}: {error}", log.WARNING)
