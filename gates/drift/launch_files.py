"""What the launch files on a node say, for a node whose engine does not run: they start it next."""

from __future__ import annotations

from node.rules.env_text import environment_text
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.engine_files import ENV_PATH, SCRIPT_PATH
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
