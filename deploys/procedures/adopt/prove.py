"""Tells how what a recipe renders differs from what runs, flag by flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyinfra import logger

from deploys.procedures.adopt.look import Seen, chosen, container_of
from schema.adoption.command_line import parse
from schema.adoption.compare import KINDS, NOT_SET, Row, compare
from schema.desired.plan import Plan

_SHOWN = 200


def differences(plan: Plan, seen: Seen, port: int | None = None) -> dict[str, list[Row]]:
    """Every flag, variable, mount and option of each node's engine beside the plan's, by node; a
    node without an engine is left out. DeployError where a node has several and no `port` says
    which.
    """
    found = {}
    for node in plan.rig.nodes:
        former = seen.former(node.name)
        if former.engines:
            engine = chosen(seen, node.name, port)
            found[node.name] = compare(plan, node.name, engine, container_of(former, engine))
    return found


def tell(plan: Plan, seen: Seen, rows: Mapping[str, Sequence[Row]]) -> None:
    """Prints the counts of what is the same, and a line for each difference."""
    for name, found in rows.items():
        same = [row for row in found if row.verdict == "same"]
        counts = ", ".join(f"{sum(row.kind == kind for row in same)} {kind}s" for kind in KINDS)
        secret = [f"{row.kind} {row.name}" for row in found if row.verdict == "secret"]
        logger.info(f"[{name}] the recipe renders the same: {counts}")
        if secret:
            logger.info(f"[{name}] secrets, by name alone: {', '.join(secret)}")
        differs = [row for row in found if row.verdict == "differs"]
        headless = name != plan.rig.head.name
        for row in differs:
            note = " (no client asks this rank)" if headless and _for_clients(row) else ""
            logger.warning(
                f"[{name}] {row.kind} {row.name} differs: it runs with {row.live[:_SHOWN]}, the "
                f"recipe renders {row.ours[:_SHOWN]}{note}"
            )
        if not differs:
            logger.info(f"[{name}] nothing differs")
        for engine in seen.former(name).engines:
            program = parse(engine.argv).program
            if "serve" not in program:
                logger.info(f"[{name}] started as {' '.join(program)}; rigbook starts the same "
                            "server as `vllm serve`")  # fmt: skip


def _for_clients(row: Row) -> bool:
    """A flag of the HTTP server, which a rank without one is often started without."""
    return row.kind == "flag" and row.live == NOT_SET and row.name in _FOR_CLIENTS


_FOR_CLIENTS = ("host", "port", "served_model_name", "reasoning_parser", "tool_call_parser",
                "enable_auto_tool_choice", "chat_template")  # fmt: skip
