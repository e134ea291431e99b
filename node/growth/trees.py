"""Backups, the copies kept for other hosts, and the trees that restores displaced."""

from __future__ import annotations

import os
import shutil
from functools import partial

from node.backup import listing, store, walk
from node.copies import others
from node.core.errors import NodeError
from node.growth import changes
from node.growth.item import Item


def displaced() -> list[Item]:
    """Gives the folders in which restores keep what they displaced, newest first, by tree."""
    found: list[Item] = []
    for row in listing.displaced():
        path, change = row["path"], row["change"]
        if not os.path.basename(path).startswith(".rigbook-"):
            raise NodeError(f"{path} is no folder of a restore", "internal")
        needed = f"change {change} is {row['status']}" if row["status"] in changes.UNSETTLED else ""
        found.append(Item(path, walk.disk_bytes(path), partial(shutil.rmtree, path), needed,
                          path.replace(change, "")))  # fmt: skip
    return found


def backups() -> list[Item]:
    """Gives the backups, newest first, by tree. Raises NodeError when the journal is damaged."""
    found: list[Item] = []
    for real, rows in listing.by_tree(None).items():
        last = listing.last_verified(rows)
        for row in rows:
            found.append(Item(row.id, listing.size(row.id), partial(store.remove, row.id),
                              listing.why_needed(row, last), real, bool(row.problem)))  # fmt: skip
    return found


def copies() -> list[Item]:
    """Gives the copies that are kept for other hosts, newest first, by host and tree."""
    return [Item(f"{row['host']}/{row['backup']}", row["bytes"],
                 partial(others.remove, row["host"], row["backup"]),
                 "whose it is cannot be told" if row["problem"] else "",
                 f"{row['host']} {row['tree']}")
            for row in others.rows()]  # fmt: skip
