"""What the launch files on a node say, for a node whose engine does not run: they start it next."""

from __future__ import annotations

from gates.engine.state import is_own
from gates.engine.vllm_flags import compare, serves
from node.rules.env_text import environment_text
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.engine_files import ENV_PATH, SCRIPT_PATH
from schema.render.engine_spec import engine_spec
from schema.render.installed import argv_in


def content(snapshot: NodeSnapshot, path: str) -> str | None:
    """The text of a file that the snapshot looked at; None when absent, private or unreadable."""
    if isinstance(snapshot.files, Unreadable):
        return None
    return next((state.content for state in snapshot.files if state.path == path), None)


def written_argv(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """The command line that the launch script runs, in the words of bash; () when not known."""
    return argv_in(content(snapshot, SCRIPT_PATH) or "")


def written_environ(snapshot: NodeSnapshot, quoted: bool = False) -> dict[str, str] | None:
    """The variables of the environment file, secrets masked; None when they are not known.

    `quoted`: the file is systemd's (a venv), whose values may stand in quotes; docker's are raw.
    """
    text = content(snapshot, ENV_PATH)
    if text is None:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    read = environment_text if quoted else str
    return {name: read(value) for name, equals, value in pairs if equals}


def running_profile(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str:
    """The profile of the node's live flags, never the one that a run would ask for; words about
    the flags where they are no profile's. Without a live engine: what its launch script starts.
    """
    found = snapshot.engine_processes
    own = () if isinstance(found, Unreadable) else (p for p in found if is_own(snapshot, p))
    live = next((p.argv for p in own if serves(p.argv)), written_argv(snapshot))
    if not serves(live):
        return "profile not seen"
    changed = {
        name: [flag for flag, _, _ in compare(_argv(plan, node, name), live)]
        for name in dict.fromkeys((plan.profile, *plan.recipe.profiles))
    }
    known = next((name for name, flags in changed.items() if not flags), None)
    flags = ", ".join(changed[plan.profile])
    return known or f"changed flags: {flags} differ from {plan.profile}"


def _argv(plan: Plan, node: Node, profile: str) -> tuple[str, ...]:
    return engine_spec(plan.rig, node, plan.recipe, profile).argv
