"""Memory that runs out on a host ends the engine there, not the host; the pair serves again.

The rehearsal hosts share this machine's memory: the limit is set just below what is available, and
a process of a host then takes as much as lies between. A limit on a host's cgroup would not do:
earlyoom reads /proc/meminfo, which is this machine's in every host without lxcfs, and the kernel's
killer for cgroups would act alone. A host whose memory really ends is an emulated one:
tests/system/vm/test_5_comes_back.py.
"""

from __future__ import annotations

import json
import time
from typing import Any

from tests.system.engine.steps import doctor, named, wait_for_completion, wait_until
from tests.system.rehearsal import Lab

HOST = "test1"
# How far below what is available the limit lies: more than a quiet machine moves by itself.
BELOW_MIB = 1500
EATS_MIB = BELOW_MIB + 300
EATER = (
    f"import time; held = [bytearray(b'x') * (1 << 20) for _ in range({EATS_MIB})]; time.sleep(20)"
)
LOGIN_S = 10
BUDGET_S = 420
WAIVED = ("--data", "waive=guard-tight", "--data", "reason=the test wants it to act")


def told(lab: Lab) -> dict[str, Any]:
    """What the host says of itself."""
    text = lab.ssh(HOST, "echo '{}' | sudo rignode host")
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_engine_ends_and_the_host_answers(serving: Lab) -> None:
    lab = serving
    wait_for_completion(lab)
    free = int(lab.ssh(HOST, "awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo"))
    words = ("--data", f"only={HOST}", "--data", "memory_guard=true",
             "--data", f"memory_guard_mib={free - BELOW_MIB}", *WAIVED)  # fmt: skip
    done = lab.pyinfra("host", *words)
    assert done.rc == 0, done.text
    assert "watchdog and panics are its host's" in done.text
    try:
        before, known = lab.starts(), len(told(lab)["kills"])
        lab.ssh(HOST, f"nohup python3 -c {json.dumps(EATER)} >/dev/null 2>&1 &")

        def killed() -> bool:
            began = time.monotonic()
            kills = told(lab)["kills"]
            assert time.monotonic() - began < LOGIN_S, "the host did not answer in time"
            return len(kills) > known

        took = wait_until("the guard acts", 60, killed, poll_s=0.5)
        first = told(lab)["kills"][known]
        print(f"REPLAY the guard ended {first['process']} after {took:.1f} s: {first['why']}")
        assert first["by"] == "earlyoom"
        assert first["process"].startswith(("VLLM::", "vllm")), first
        # The eater ends by itself; it may also go next, while it still holds the memory.
        wait_for_completion(lab, BUDGET_S)
        after = lab.starts()
        assert all(after[name] != before[name] for name in before), "never one half of a pair"
        codes = named(doctor(lab))
        assert ("memory-kill", HOST) in codes
        assert ("second-unit", HOST) not in codes, "a guard is no engine"
    finally:
        gone = lab.pyinfra("host", "--data", f"only={HOST}", "--data", "remove=true")
        assert gone.rc == 0, gone.text
    assert lab.ssh(HOST, "systemctl is-active earlyoom.service", check=False) == "inactive"
    assert told(lab)["settings"]["wanted"] is None
