"""The steps that are not about one file's bytes; each kind has the same functions.

checked, plan, target, do (those that a request may hold), look, same, ready, revert, settle.
"""

from __future__ import annotations

from typing import Any

from node.change import link_step, tree_step, work_folder_step
from node.venv import in_place_step

# what a request may hold
ASKED: dict[str, Any] = {"link": link_step, "tree": tree_step}
# what a journal may hold
KINDS: dict[str, Any] = {**ASKED, "work": work_folder_step, "install": in_place_step}
