"""The names of vLLM's segments in /dev/shm."""

from __future__ import annotations

import re

# psm_: multiprocessing's; sem.mp-: its semaphores; -cpushm_N: all-reduce between ranks on CPUs,
# named by the ranks' meeting point and the ranks: vllm_dist_0f3a-tp:0-[0-1]-cpushm_0
_NAME = re.compile(
    r"^(?:(?:psm_|sem\.mp-)[A-Za-z0-9_.-]+|[A-Za-z0-9_.:-]+-\[[0-9-]+\]-cpushm_[0-9]+)$"
)
# In a process's maps: a segment's path looks different from outside its container, its name does
# not. Narrower than a name: it is a sign of an engine, and a semaphore is mapped by many programs.
MAPPED = re.compile(
    rb"/(?:psm_[0-9a-f]{6,}|[^/\n]+\]-cpushm_[0-9]+)(?: \(deleted\))?$", re.MULTILINE
)


def is_engines(name: str) -> bool:
    """Gives True for the name of a segment that vLLM makes."""
    return _NAME.match(name) is not None
