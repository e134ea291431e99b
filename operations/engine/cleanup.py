"""What makes a cold start cold: no orphan process, no stale segment, memory where it is needed.

Each is one verb of node, journalled as a step of the run's change. `found` is what node's dry run
saw, so that `--dry` shows what would end and what would be spared, and why.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from functools import partial
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, operation

from operations.change.node_call import StepFailed, call
from operations.change.run import Run

# TERM, wait, KILL, then memory that has to drain.
REAP_TIMEOUT_S = 180
# said of each before it is done
_FOR_GOOD = "cannot be undone"


@operation()
def reap(
    run: Run,
    request: Mapping[str, Any],
    found: Mapping[str, Any],
    members: Collection[str],
) -> Generator[FunctionCommand, None, None]:
    """
    End engine processes that no live supervisor owns, and prove that they are gone.

    + run: the change
    + request: what node's `reap` takes
    + found: what node's dry `reap` answered
    + members: the nodes on which something is to be ended
    """
    for spared in found.get("spared", []):
        run.show_once(host, f"spare {spared}", partial(_tell, host, "spare", spared))
    if host.name not in members:
        host.noop("no orphan of the engine")
        return
    for orphan in found.get("ended", []):
        run.show_once(host, f"end {orphan}", partial(_tell, host, "end", orphan))
    node = host.name
    yield run.step("reap", members, lambda: _reap(run, node, request))


def _tell(host: Host, verb: str, process: Mapping[str, Any]) -> None:
    line = f"{verb} pid {process.get('pid')} {process.get('argv0', '')}: {process.get('why')}"
    host.log(f"{line} ({_FOR_GOOD})" if verb == "end" else line)


def _reap(run: Run, node: str, request: Mapping[str, Any]) -> None:
    run.touch(node)
    wanted = {**request, "change": run.change(), "dry": False}
    answer = call(run.state, run.host(node), "reap", wanted, REAP_TIMEOUT_S)
    if answer["verdict"] not in ("clean", "nothing"):
        raise StepFailed(f"{node}: {answer['verdict']}: {answer['evidence']}")


@operation()
def clear_shm(
    run: Run, members: Collection[str], names: Mapping[str, Collection[str]]
) -> Generator[FunctionCommand, None, None]:
    """
    Remove the engine's shared-memory segments that no process maps or opens.

    + run: the change
    + members: the nodes that have such segments
    + names: the segments by node, for the plan
    """
    if host.name not in members:
        host.noop("no stale segment in /dev/shm")
        return
    listed = ", ".join(sorted(names[host.name])) or "what the engine leaves there"
    run.show_once(
        host,
        "shm",
        lambda: host.log(f"remove from /dev/shm, unless it is mapped: {listed} ({_FOR_GOOD})"),
    )
    node = host.name
    yield run.step("shm", members, lambda: _verb(run, node, "shm", {}))


@operation()
def drop_caches(
    run: Run, members: Collection[str], needs: Mapping[str, Mapping[str, Any]]
) -> Generator[FunctionCommand, None, None]:
    """
    Write back and drop the page cache once, before the launch, where the memory need asks for it.

    + run: the change
    + members: the nodes whose memory is short of the need
    + needs: what node's `caches` takes, by node
    """
    if host.name not in members:
        host.noop("memory is enough as it is")
        return
    need = needs[host.name]["need_available_bytes"] / 2**30
    line = (
        f"sync and drop the page cache once, if less than {need:.1f} GiB are available by then "
        f"({_FOR_GOOD}; it fills again by itself)"
    )
    run.show_once(host, "caches", lambda: host.log(line))
    node = host.name
    yield run.step("caches", members, lambda: _verb(run, node, "caches", needs[node]))


def _verb(run: Run, node: str, verb: str, request: Mapping[str, Any]) -> None:
    run.touch(node)
    call(run.state, run.host(node), verb, {**request, "change": run.change()}, REAP_TIMEOUT_S)
