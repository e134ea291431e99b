"""Small JSON files of this host: settings that a deploy wrote, and what lasts between two looks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from node.core import log, validate
from node.core.errors import Json, NodeError, io_reason
from node.files import atomic

T = TypeVar("T")
_MOST = 1 << 20


def read_settings(path: str, parse: Callable[[Any], T], code: str, remedy: str) -> T:
    """Gives a file's JSON as `parse` takes it. Raises NodeError (`code`): one line with the file.

    The parser's own words are left out: they may quote a webhook's URL.
    """
    try:
        with open(path, "rb") as file:
            return parse(json.loads(file.read(_MOST).decode("utf-8")))
    except OSError as error:
        raise NodeError(io_reason(error), code, remedy) from None
    except ValueError:
        raise NodeError(f"{path} is not JSON", code, remedy) from None
    except NodeError as error:
        raise NodeError(f"{path}: {error}", code, remedy) from None


def format_is(body: Json, known: int) -> None:
    """Raise NodeError unless a file's `format` is the one that is known here."""
    if body["format"] != known:
        said = str(body["format"])[:20]
        raise validate.bad(f"format {said} is not the {known} that is known here")


def load(path: str, fresh: Json, added: Collection[str] = ()) -> Json:
    """Gives the state kept at `path`; `fresh`, which has its keys, when there is none.

    So, too, when it is damaged, with a warning. The keys `added` may be missing: an older version
    wrote it. Raises OSError when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return fresh
    except ValueError:
        found = None
    if isinstance(found, dict) and found.keys() | set(added) == fresh.keys():
        return {**fresh, **found}
    log.say(f"{path} is damaged: starting anew", log.WARNING)
    return fresh


def save(path: str, state: Json, folder_mode: int = 0o700) -> None:
    """Write the state for the next look; it is on the disk on return."""
    os.makedirs(os.path.dirname(path), mode=folder_mode, exist_ok=True)
    atomic.save_private(path, json.dumps(state, sort_keys=True).encode("utf-8") + b"\n")
