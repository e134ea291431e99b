"""What is watched and who is told: /etc/rigbook/watch.json (0600, deploys/watch.py writes it)."""

from __future__ import annotations

import shlex
import os
import stat
from typing import Any, NamedTuple

from node.core import validate
from node.core.errors import NodeError, io_reason
from node.engine.config import Endpoint, endpoint, http_url
from node.files import state_file
from node.watch.silence import Limits

PATH = "/etc/rigbook/watch.json"
FORMAT = 1
_KEYS = ("format", "rig", "node", "endpoint", "misses", "webhook", "webhook_file")
_MORE = ("silence", "textfile", "deployment")
_REMEDY = "run deploys/watch.py: it writes the file anew"


class Silence(NamedTuple):
    """How long this host's engine may be silent, and whether it is restarted then."""

    limits: Limits
    restart: bool


class Watch(NamedTuple):
    """What is watched, and how many misses until it counts as down.

    `silence` None: what is asked is not our engine. `deployment` says which one that is on a
    Kubernetes rig; node/kube/watched.py checks it. `textfile` is a file for Prometheus's
    node exporter. `webhook` is the URL, or `webhook_file` a root-only file that holds it; both
    None: the journal alone is told.
    """

    rig: str
    node: str
    endpoint: Endpoint
    misses: int
    webhook: str | None
    webhook_file: str | None
    silence: Silence | None = None
    textfile: str | None = None
    deployment: Any = None


def path() -> str:
    """Gives the file's path; RIGBOOK_WATCH names another one (tests)."""
    return os.environ.get("RIGBOOK_WATCH") or PATH


def load() -> Watch:
    """Gives the configuration. Raises NodeError (`watch_file`): one line, never with the URL."""
    return state_file.read_settings(path(), parse, "watch_file", _REMEDY)


def parse(value: Any) -> Watch:
    """Gives the configuration of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", (*_KEYS, *_MORE), _KEYS)
    state_file.format_is(body, FORMAT)
    url, file = body["webhook"], body["webhook_file"]
    text = body.get("textfile")
    return Watch(
        validate.text(body["rig"], "rig", 200),
        validate.text(body["node"], "node", 200),
        endpoint(body["endpoint"], "endpoint"),
        int(validate.number(body["misses"], "misses", 1, 1000)),
        None if url is None else http_url(url, "webhook"),
        None if file is None else validate.path(file, "webhook_file"),
        _silence(body.get("silence")),
        None if text is None else validate.path(text, "textfile"),
        body.get("deployment"),
    )


def _silence(value: Any) -> Silence | None:
    if value is None:
        return None
    names = (*Limits._fields, "restart")
    row = validate.keys(value, "silence", names, names)
    limits = (validate.number(row[key], f"silence.{key}", 10, 86400) for key in Limits._fields)
    return Silence(Limits(*limits), validate.boolean(row["restart"], "silence.restart"))


def webhook_url(url: str | None, where: str | None) -> str | None:
    """Gives the URL, or the one in a root-only file. Raises NodeError (`webhook_file`)."""
    if where is None:
        return url
    remedy = f"put the URL in it; chown root {shlex.quote(where)}; chmod 600 {shlex.quote(where)}"
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(where, flags), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise NodeError(f"{where} is not a plain file", "webhook_file", remedy)
            if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
                raise NodeError(f"{where} is not root's alone", "webhook_file", remedy)
            text = file.read(8192).decode("utf-8", "replace").strip()
    except OSError as error:
        raise NodeError(io_reason(error), "webhook_file", remedy) from None
    try:
        return http_url(text, where)
    except NodeError as error:
        raise NodeError(str(error), "webhook_file", remedy) from None
