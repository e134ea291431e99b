"""A venv's live engine against its plan: its flags, its environment, the venv that it runs in."""

from __future__ import annotations

from collections.abc import Iterator

from gates.artifact.venv import own_venv
from gates.drift.difference import Difference
from gates.drift.launch_files import written_argv, written_environ
from gates.engine.state import is_own
from gates.engine.vllm_flags import NOT_SET, compare, serves
from gates.recipe.choices import forbidden
from node.rules.secret import MASK, WATCHED
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.machine import EngineProcess
from schema.observed.snapshot import NodeSnapshot, Unreadable


def venv_drift(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Difference]:
    """What differs; without a live engine, what its files would start."""
    processes = snapshot.engine_processes
    if isinstance(processes, Unreadable):
        yield Difference("unknown", "engine_processes", "readable", processes.unreadable)
        return
    own = [process for process in processes if is_own(snapshot, process)]
    server = next((process for process in own if serves(process.argv)), None)
    argv = server.argv if server else written_argv(snapshot)
    if serves(argv):
        for name, want, have in compare(plan.specs[node.name].argv, argv):
            yield Difference("flag", name, want, have)
    environ = server.environ if server else written_environ(snapshot, quoted=True)
    if environ is not None:
        yield from environment_drift(plan, node, environ)
    if server is not None:
        yield from secrets_not_set(plan, node, server.environ)
        yield from _place(plan, node, snapshot, server)


def _place(
    plan: Plan, node: Node, snapshot: NodeSnapshot, server: EngineProcess
) -> Iterator[Difference]:
    """The program that runs, and the venv whose interpreter runs it: a link that was moved on
    since the start leaves the former engine serving.
    """
    wanted = plan.specs[node.name].argv[0]
    program = server.argv[server.argv.index("serve") - 1]
    if program != wanted:
        yield Difference("venv", "program", wanted, program)
        return
    venv = own_venv(plan, node, snapshot)
    if venv is None or venv.target is None:
        return
    interpreter = server.argv[0]
    inside = interpreter.startswith((f"{venv.target}/", f"{venv.path}/"))
    if interpreter.startswith("/") and interpreter != program and not inside:
        yield Difference("venv", venv.path, f"leads to {venv.target}", f"runs {interpreter}")


def environment_drift(plan: Plan, node: Node, live: dict[str, str]) -> Iterator[Difference]:
    """The recipe's watched variables that the engine has otherwise, and forbidden ones."""
    for name, want in plan.specs[node.name].environ.items():
        have = live.get(name)
        if name.startswith(WATCHED) and have not in (want, MASK):
            yield Difference("environment", name, want, NOT_SET if have is None else have)
    for rule in forbidden(plan, live):
        yield Difference("forbidden", rule.name, rule.reason, live[rule.name])


def secrets_not_set(plan: Plan, node: Node, live: dict[str, str]) -> Iterator[Difference]:
    """The secrets that a live engine does not have: without its key it serves everybody."""
    for name in plan.specs[node.name].secrets:
        if name.startswith(WATCHED) and name not in live:
            yield Difference("environment", name, "set, as a secret", NOT_SET)
