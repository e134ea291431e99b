"""Tells how what a recipe renders differs from what runs, flag by flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyinfra import logger

from deploys.procedures.adopt.look import Seen, chosen, container_of
from schema.adoption.command_line import parse
from schema.adoption.compare import NOT_SET, Row, compare
from schema.desired.plan import Plan

_SHOWN = 200


def differences(plan: Plan, seen: Seen, port: int | None = None) -> dict[str, list[Row]]:
    """Every flag, variable and mount of each node's engine beside the plan's, by node; DeployError
    when a node has none, or several and no `port` says which.
    """
    found = {}
    for node in plan.rig.nodes:
        engine = chosen(seen, node.name, port)
        box = container_of(seen.former(node.name), engine)
        found[node.name] = compare(plan, node.name, engine, box)
    return found


def tell(plan: Plan, seen: Seen, rows: Mapping[str, Sequence[Row]]) -> None:
    """Prints the counts of what is the same, and a line for each difference."""
    for name, found in rows.items():
        same = [row for row in found if row.verdict == "same"]
        counts = ", ".join(
            f"{sum(row.kind == kind for row in same)} {kind}s"
            for kind in ("flag", "variable", "mount")
        )
        secret = [f"{row.kind} {row.name}" for row in found if row.verdict == "secret"]
        logger.info(f"[{name}] the recipe renders the same: {counts}")
        if secret:
            logger.info(f"[{name}] secrets, by name alone: {', '.join(secret)}")
        differs = [row for row in found if row.verdict == "differs"]
        for row in differs:
            logger.warning(
                f"[{name}] {row.kind} {row.name} differs: it runs with {row.live[:_SHOWN]}, the "
                f"recipe renders {row.ours[:_SHOWN]}{_why(row)}"
            )
        if not differs:
            logger.info(f"[{name}] nothing differs")
        engine = seen.former(name).engines
        program = " ".join(parse(engine[0].argv).program) if engine else ""
        if program and "serve" not in program.split():
            logger.info(f"[{name}] started as {program}; rigbook starts `vllm serve`, which is the "
                        "same server")  # fmt: skip


def _why(row: Row) -> str:
    """What is known of a difference, in a few words."""
    if row.kind == "flag" and row.live == NOT_SET:
        return " (a headless rank answers nobody)" if row.name in _HEADS else ""
    return ""


# A rank without HTTP is often started without them; there they change nothing.
_HEADS = ("host", "port", "served_model_name", "reasoning_parser", "tool_call_parser",
          "enable_auto_tool_choice", "chat_template")  # fmt: skip
