"""/etc/rigbook/library.json: which library was swapped, the hashes that are known, the guard."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from node.core import validate
from node.core.errors import Json
from node.engine.config import http_url
from node.files import state_file

PATH = "/etc/rigbook/library.json"
FORMAT = 1
_KEYS = ("format", "rig", "node", "target", "original", "ours", "guard", "reapply", "webhook",
         "webhook_file")  # fmt: skip
_REMEDY = "run deploys/libvgpu.py: it writes the file anew"


class State(NamedTuple):
    """The swapped file, the hash that we found first, ours, and what the guard does.

    `reapply`: ours is put back when the plugin restored its own. The webhook is watch's kind.
    """

    rig: str
    node: str
    target: str
    original: str
    ours: str
    guard: bool
    reapply: bool
    webhook: str | None
    webhook_file: str | None


def path() -> str:
    """Gives the file's path; RIGBOOK_LIBRARY names another one (tests)."""
    return os.environ.get("RIGBOOK_LIBRARY") or PATH


def parse(value: Any) -> State:
    """Gives the state of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", _KEYS, _KEYS)
    state_file.format_is(body, FORMAT)
    url, file = body["webhook"], body["webhook_file"]
    return State(
        validate.text(body["rig"], "rig", 200),
        validate.text(body["node"], "node", 200),
        validate.path(body["target"], "target"),
        validate.sha256(body["original"], "original"),
        validate.sha256(body["ours"], "ours"),
        validate.boolean(body["guard"], "guard"),
        validate.boolean(body["reapply"], "reapply"),
        None if url is None else http_url(url, "webhook"),
        None if file is None else validate.path(file, "webhook_file"),
    )


def read() -> State | None:
    """Gives the state, or None where no library was swapped. Raises NodeError (`library_file`)."""
    if not os.path.lexists(path()):
        return None
    return state_file.read_settings(path(), parse, "library_file", _REMEDY)


def load() -> Json | None:
    """Gives what others may know of the state (not the webhook), or None."""
    found = read()
    if found is None:
        return None
    return {key: value for key, value in found._asdict().items() if not key.startswith("webhook")}
