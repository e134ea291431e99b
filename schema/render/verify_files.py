"""The files of the weekly reading of a host's backups (node/copies/weekly.py is what it runs)."""

from __future__ import annotations

from schema.desired.plan import Document
from schema.render.engine_files import UNITS_DIR, render

VERIFY_TIMER = "rigbook-verify.timer"
PATHS = (f"{UNITS_DIR}/rigbook-verify.service", f"{UNITS_DIR}/{VERIFY_TIMER}")


def verify_documents() -> tuple[Document, ...]:
    """The service and its timer, the same on each node."""
    return tuple(Document(path, render(path), "0644") for path in PATHS)
