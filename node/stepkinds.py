"""The steps that are not about one file's bytes; each kind has the same functions.

checked, plan, target, do (those that a request may hold), look, same, ready, revert, settle.
"""

from __future__ import annotations

from typing import Any, Dict

from node import step_install, step_link, step_tree, step_work

# what a request may hold
ASKED: Dict[str, Any] = {"link": step_link, "tree": step_tree}
# what a journal may hold
KINDS: Dict[str, Any] = {**ASKED, "work": step_work, "install": step_install}
