"""Cases of a machine with two GPUs: tensor parallel 2 with NCCL between real cards.

NVLink multicast stays off by three variables of the recipe: a unit has an environment of its own.
"""

from __future__ import annotations

import yaml

from tests.system.gpu.holders import hold, release
from tests.system.gpu.rig_host import IDLE_MIB, RECIPE, Rig, tail


def pair(rig: Rig) -> str:
    """Two ranks serve; a second run changes nothing; one worker killed, both come back."""
    use_both()
    rig.stopped()
    done = rig.deploy("serve")
    assert done.rc == 0 and "COMMITTED" in done.text, tail(done)
    held = [int(row[0]) for row in rig.smi("--query-gpu=memory.used")]
    assert min(held) > 1000, held
    assert rig.deploy("serve").is_unchanged
    worker = rig.computing("Worker")[-1]
    rig.on(f"kill -9 {worker}")
    rig.wait("it is named", 20, lambda: "nothing blocks" not in rig.deploy("doctor").text)
    back = rig.came_back(240)
    stop = rig.deploy("stop")
    assert stop.rc == 0 and rig.used() < IDLE_MIB, tail(stop)
    return f"{held} MiB; serve {done.seconds:.0f} s; a worker's death {back:.0f} s"


def one_of_two(rig: Rig) -> str:
    """Another program on the second card alone: serve refuses, and names card and pid."""
    use_both()
    rig.stopped()
    hold(rig, "60000", "1")
    try:
        (pid,) = rig.computing()
        done = rig.deploy("serve")
        assert done.rc != 0 and "memory-short" in done.text, tail(done)
        assert f"pid {pid}" in done.text and "GPU 1" in done.text, tail(done)
        return f"refused in {done.seconds:.1f} s"
    finally:
        release(rig)


def use_both() -> None:
    """The recipe for two ranks on one host."""
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["vllm_serve"] |= BOTH
    recipe["env"] |= MULTICAST_OFF
    RECIPE.write_text(yaml.safe_dump(recipe))


BOTH = {
    "tensor_parallel_size": 2, "distributed_executor_backend": "mp",
    "disable_custom_all_reduce": True,
}  # fmt: skip
MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"
}  # fmt: skip
