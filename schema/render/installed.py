"""What the launch files on a node say, read from their texts."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class InstalledEndpoint:
    """Where an engine answers and what is expected of it."""

    url: str
    model: str
    reasoning: bool
    chat_template_kwargs: tuple[tuple[str, Any], ...]


def endpoint_in(document: str) -> InstalledEndpoint | None:
    """The endpoint of a node.json; None for a text without one, such as a worker's."""
    try:
        said = json.loads(document)["endpoint"]
        return InstalledEndpoint(
            str(said["url"]),
            str(said["model"]),
            bool(said["reasoning"]),
            tuple(said["chat_template_kwargs"].items()),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Membership:
    """The rig that a node was set up for, and the fabric addresses of its peers."""

    rig: str
    peers: tuple[str, ...]


def membership_in(document: str) -> Membership | None:
    """The rig that a node.json names; None for a text that names none."""
    try:
        said = json.loads(document)
        return Membership(str(said["rig"]), tuple(str(peer) for peer in said["peers"]))
    except (ValueError, KeyError, TypeError):
        return None


def argv_in(script: str) -> tuple[str, ...]:
    """The command line that a launch script runs, in the words of bash; () when not known."""
    lines = script.replace("\\\n", " ").splitlines()
    last = next((line for line in reversed(lines) if "serve" in line.split()), "")
    try:
        words = shlex.split(last, comments=True)
    except ValueError:
        return ()
    return tuple(words[1:] if words[:1] == ["exec"] else words)
