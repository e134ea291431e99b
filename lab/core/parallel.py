"""One piece of work for several hosts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from lab.core.settings import LabHost


def in_parallel(hosts: Sequence[LabHost], work: Callable[[LabHost], object]) -> None:
    """Do `work(host)` for all hosts at once; the first error is raised after all have ended."""
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        for future in [pool.submit(work, host) for host in hosts]:
            future.result()
