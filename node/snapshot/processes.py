"""The processes that look like a vLLM engine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from node.core import masking, proc
from node.core.errors import Json

_PYTHON = re.compile(r"^python[0-9.]*$")
_ENTRY = re.compile(r"(?:^|/)vllm$|(?:^|/)vllm/entrypoints/.*\.py$")


def is_engine(argv: Sequence[str]) -> bool:
    """Gives True for `VLLM::…` titles and for an interpreter or script that runs vLLM itself.

    Only the program position counts: `docker run IMAGE vllm serve`, `bash -c 'vllm serve'` and
    `docker-init -- vllm serve` are not engines.
    """
    if not argv:
        return False
    if argv[0].startswith("VLLM::") or _ENTRY.search(argv[0]):
        return True
    if not _PYTHON.match(os.path.basename(argv[0])):
        return False
    rest = list(argv[1:])
    while rest:
        arg = rest.pop(0)
        if arg == "-m":
            module = rest[0] if rest else ""
            return module == "vllm" or module.startswith("vllm.entrypoints")
        if arg in ("-X", "-W"):
            rest = rest[1:]
        elif not arg.startswith("-"):
            return bool(_ENTRY.search(arg))
        elif arg == "-c":
            return False
    return False


def read() -> list[Json]:
    """Gives the engine processes, ascending by pid."""
    found: list[Json] = []
    for pid in proc.pids():
        argv = proc.argv(pid)
        if not is_engine(argv):
            continue
        before = proc.stat(pid)
        cgroup = proc.cgroup(pid)
        environ = proc.environ(pid)
        exe = proc.exe(pid)
        uid = proc.uid(pid)
        after = proc.stat(pid)
        # a pid that was given to another process meanwhile would mix two
        if before is None or after is None or uid is None:
            continue
        if before.start_ticks != after.start_ticks or after.state in "ZX":
            continue
        parent = proc.stat(after.ppid)
        found.append(
            {
                "pid": pid,
                "ppid": after.ppid,
                "start_ticks": after.start_ticks,
                "uid": uid,
                "comm": after.comm,
                "argv": list(masking.masked_argv(argv)),
                "exe": exe,
                "cgroup": cgroup,
                "unit": proc.unit_of(cgroup),
                "container_id": proc.container_of(cgroup),
                "environ": masking.watched_environ(environ),
                "rss": after.rss,
                "parent_comm": parent.comm if parent else None,
            }
        )
    return found
