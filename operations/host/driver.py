"""A driver's packages fetched before anything stops; its CDI spec and its proof once it is loaded.

The exchange itself is steps of node (`packages`, `module`), made by operations/change/apply.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.node_call import StepFailed, call
from operations.change.run import Run

# Some hundred MB over a slow line, and dpkg-repack of what no repository has any more.
FETCH_S = 3600
CDI_S = 90
PROVE_S = 400


@operation()
def fetch(
    run: Run, rows: Mapping[str, Sequence[Mapping[str, Any]]], words: Sequence[str]
) -> Generator[FunctionCommand, None, None]:
    """
    Bring the new packages to this node, and keep the old ones for the way back.

    + run: the change
    + rows: by node, the packages that are exchanged
    + words: what is exchanged here, for a person, a line each
    """
    mine = rows.get(host.name, ())
    for line in words:
        run.show_once(host, line, partial(host.log, line))
    if not mine:
        host.noop("no package is exchanged here")
        return
    node, reporter = host.name, host

    def work() -> None:
        answer = call(run.state, run.host(node), "driver fetch", {"rows": list(mine)}, FETCH_S)
        kept = sorted(set(answer["kept"].values()))
        reporter.log(
            f"{answer['new']} new packages are here, {len(answer['kept'])} old ones are kept"
            + (f" ({', '.join(kept)})" if kept else "")
        )

    yield run.step("fetch", [name for name, wanted in rows.items() if wanted], work, FETCH_S)


@operation()
def cdi(run: Run, specs: Mapping[str, Mapping[str, str]]) -> Generator[FunctionCommand, None, None]:
    """
    Make this node's CDI specs anew, of the driver that is loaded now.

    + run: the change
    + specs: by node, the specs' paths, each with its mode
    """
    mine = specs.get(host.name, {})
    if not mine:
        host.noop("no CDI spec of an older driver lies here")
        return
    node = host.name
    for path in mine:
        run.show_once(host, path, partial(host.log, f"nvidia-ctk makes {path} anew"))

    def work() -> None:
        text = call(run.state, run.host(node), "driver cdi", {}, CDI_S)["text"]
        if text is None:
            raise StepFailed(
                f"{node}: {', '.join(mine)} is of the old driver, and nvidia-ctk is not installed"
            )
        run.apply(node, [
            {"op": "file", "path": path, "content": text, "mode": mode, "owner": "root",
             "group": "root"}
            for path, mode in mine.items()
        ])  # fmt: skip

    yield run.step("cdi", [name for name, paths in specs.items() if paths], work)


@operation()
def works(
    run: Run, members: Collection[str], check: Callable[[str], str]
) -> Generator[FunctionCommand, None, None]:
    """
    Prove the driver on this node before an engine is started on it.

    + run: the change
    + members: the nodes whose driver is another one now
    + check: proves it and says how, or raises StepFailed
    """
    if host.name not in members:
        host.noop("the driver is as it was")
        return
    node, reporter = host.name, host
    run.show_once(host, "works", lambda: host.log("module, library, nvidia-smi, a CUDA context"))
    yield run.step("works", members, lambda: reporter.log(check(node)))
