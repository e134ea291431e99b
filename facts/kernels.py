"""What each node of a rig would boot next: a second command, at the same time as the snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping

import gevent
from pydantic import ValidationError
from pyinfra.api import FactBase, State, StringCommand
from pyinfra.api.exceptions import FactProcessError

from facts.observe import in_host, observe, real
from facts.rignode import pack
from facts.snapshot import bounded
from schema.desired.plan import Plan
from schema.observed.kernel import KernelFacts, KernelSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable

KERNEL_TIMEOUT_S = 60


class Kernels(FactBase[KernelFacts]):
    """The host's KernelFacts. `module`: the driver's kernel module; empty: none is needed."""

    def command(self, module: str = "") -> str:
        """The one command that runs `node kernel` on the host, read-only."""
        return bounded(pack.inline_command("kernel", {"module": module or None}), KERNEL_TIMEOUT_S)

    def process(self, output: list[str]) -> KernelFacts:
        """The typed facts; FactProcessError says in one line what the host answered instead."""
        return parse_kernels(output)


def parse_kernels(output: list[str]) -> KernelFacts:
    """KernelFacts from the lines of `node kernel`; FactProcessError when they hold none."""
    try:
        document = json.loads(output[-1])
    except (IndexError, ValueError):
        document = None
    if not isinstance(document, dict):
        raise FactProcessError(f"the host answered no kernel facts but: {' '.join(output)[:300]!r}")
    if not document.pop("ok", False):
        raise FactProcessError(f"node kernel failed: {document.get('error')}")
    try:
        return KernelFacts.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FactProcessError(
            f"the host's kernel facts do not fit at {where}: {first['msg']}"
        ) from None


def observe_kernels(
    state: State, plan: Plan, module: str | None, fresh: bool = False
) -> Mapping[str, NodeSnapshot | Unreadable]:
    """As `observe`, each node's snapshot a KernelSnapshot; both commands run at the same time."""
    state = real(state)
    jobs = {node.name: gevent.spawn(_look, state, node.name, module) for node in plan.rig.nodes}
    seen = observe(state, plan, fresh)
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        kernel = jobs[name].get()
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
            found[name] = KernelSnapshot.model_construct(**values, kernel=kernel)
        else:
            found[name] = snapshot
    return found


def _look(state: State, name: str, module: str | None) -> KernelFacts | Unreadable:
    host = state.inventory.get_host(name)
    if host not in state.active_hosts or not state.is_host_in_limit(host):
        return Unreadable(unreadable="no connection")
    try:
        _, output = in_host(
            state,
            host,
            host.run_shell_command,
            StringCommand(Kernels().command(module or "")),
            print_output=state.print_fact_output,
            print_input=state.print_fact_input,
            _sudo=True,
        )
        return parse_kernels(output.stdout_lines or output.stderr_lines)
    except FactProcessError as error:
        return Unreadable(unreadable=str(error))
    except Exception as error:  # whatever went wrong: unknown, not fine
        return Unreadable(unreadable=f"{type(error).__name__}: {error}")
