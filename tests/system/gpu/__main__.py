"""The cases of the GPU tier: `python3 -m lab.gpu cases [CASE…]` on the machine with the GPU.

Prints one line for each: PASS or FAIL, seconds, MiB in use at its end, and what was seen. Exit
status 1 when one failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

from lab import gpu
from lab.core import LabError
from tests.system.gpu import cases, driver, holders
from tests.system.gpu.rig_host import LOGS, ROOT, Rig, machine

Case = Callable[[Rig], str]
# In the order in which the fewest starts of the engine are needed.
ONE_GPU: dict[str, Case] = {
    "serve": cases.serve,
    "serve-again": cases.serve_again,
    "doctor": cases.doctor,
    "compare": cases.compare,
    "backup": cases.backup,
    "kill-server": cases.kill_server,
    "kill-core": cases.kill_core,
    "stop": cases.stop,
    "stop-loading": cases.stop_loading,
    "foreign": holders.foreign,
    "by-hand": holders.by_hand,
    "orphan": holders.orphan,
    "upgrade": cases.upgrade,
    "restore": cases.restore,
    "wedge": cases.wedge,
    "edge": holders.edge,
    "reap": driver.reap,
    "library": driver.library,
    "bench": cases.bench,
    "soak": cases.soak,
}
TWO_GPUS: dict[str, Case] = {"pair": cases.pair, "one-of-two": cases.one_of_two}
CASES = {**ONE_GPU, **TWO_GPUS}


def run(rig: Rig, name: str) -> bool:
    """One case, and its line; whether it passed."""
    rig.case = name
    began = time.monotonic()
    try:
        word, said = "PASS", CASES[name](rig)
    except (AssertionError, LabError, subprocess.TimeoutExpired, ValueError) as error:
        word, said = "FAIL", f"{type(error).__name__}: {' '.join(str(error).split())}"[:900]
        rig.note("traceback", traceback.format_exc())
        rig.note("engine", rig.on("journalctl -u rigbook-engine -n 300 --no-pager", check=False))
    took = time.monotonic() - began
    print(f"{word} {name}: {took:.1f} s, {rig.used()} MiB; {said}", flush=True)
    return word == "PASS"


def main(names: list[str]) -> int:
    """Runs the cases named, or all that this machine's GPUs allow."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"no case {', '.join(unknown)}; there are: {', '.join(CASES)}")
        return 2
    shutil.copytree(ROOT / "tests/system/gpu/rig", ROOT, dirs_exist_ok=True)
    rig = Rig()
    cards = len(rig.smi("--query-gpu=index"))
    print(machine(), flush=True)
    wanted = names or [*ONE_GPU, *(TWO_GPUS if cards > 1 else ())]
    passed = [run(rig, name) for name in wanted]
    if cards < 2 and not names:
        print(f"not run, they need two GPUs: {', '.join(TWO_GPUS)}")
    print(f"{sum(passed)} of {len(passed)} passed; logs in {LOGS}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    assert gpu.MOUNT.exists(), "there is no host: python3 -m lab.gpu up"
    sys.exit(main(sys.argv[1:]))
