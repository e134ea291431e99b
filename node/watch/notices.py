"""Notices to a webhook: told in order, and kept until they are taken."""

from __future__ import annotations

import time
from collections.abc import Callable

from node.core import log
from node.core.errors import Json
from node.core.webhook import post

# systemd ends the service after two minutes
DELIVER_S = 40.0


def deliver(pending: list[Json], url: str | None, save: Callable[[], None]) -> None:
    """POSTs the pending notices in order and calls `save` after each; the rest stays.

    Without a URL they go: the journal has told them.
    """
    deadline = time.monotonic() + DELIVER_S
    while pending and time.monotonic() < deadline:
        failed = None if url is None else post(url, pending[0])
        if failed:
            log.say(f"the webhook did not take a notice: {failed}; kept", log.WARNING)
            return
        del pending[0]
        save()
