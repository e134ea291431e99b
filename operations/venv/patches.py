"""Patches of an engine's files: written whole as journalled steps, or by a tool of others."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.node_call import call
from operations.change.run import Run

# Compiles without running it; the venv's own Python, because an older one may not know the syntax.
_COMPILES = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"


def file_step(file: Mapping[str, Any], content_base64: str) -> dict[str, object]:
    """The step that gives a file its wanted content; owner and mode stay, an edit in between is
    refused. `file` is node's answer about it (`rignode patch look`).
    """
    step: dict[str, object] = {
        "op": "file",
        "path": file["path"],
        "content_base64": content_base64,
        "mode": file["mode"],
        "owner": file["owner"] or "root",
        "group": file["group"] or "root",
        "expect_sha256": file["sha256"],
    }
    if str(file["path"]).endswith(".py"):
        python = file["python"] or "python3"
        step["validate"] = [python, "-I", "-B", "-S", "-c", _COMPILES, "{tmp}"]
    return step


@operation()
def use_tool(
    run: Run, tool: Mapping[str, Any], members: Collection[str], timeout_s: int
) -> Generator[FunctionCommand, None, None]:
    """
    Run a patch tool; the files that it changes are journalled, its failures end the change.

    + run: the change
    + tool: the tool as `rignode patch tool` takes it
    + members: the nodes on which it has not been run on the tree that is there
    + timeout_s: how long it may take, in seconds
    """
    if host.name not in members:
        host.noop(f"{tool['id']} has been run on what is there")
        return
    here = host
    line = f"run {tool['id']}: {' '.join(tool['argv'])}"
    run.show_once(host, tool["id"], lambda: host.log(line))
    yield run.step(
        f"tool {tool['id']}",
        members,
        lambda: here.log_styled(run_tool(run, here.name, tool, timeout_s), fg="green"),
    )


def run_tool(run: Run, node: str, tool: Mapping[str, Any], timeout_s: int) -> str:
    """Runs a patch tool on a node as a step of the change; what came of it, in a line."""
    run.touch(node)
    request = {"change": run.change(), "tool": dict(tool)}
    answer = call(run.state, run.host(node), "patch tool", request, timeout_s + 300)
    said = answer["said"]
    if said is None:
        return f"{tool['id']}: had been run already"
    return (
        f"{tool['id']}: {said['applied']} applied, {said['skipped']} skipped, {said['failed']} "
        f"failed; {len(answer['files'])} files changed"
    )
