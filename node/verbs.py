"""The verbs and the functions behind them, each imported only when it runs."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict

from node.errors import Json

# read-only, JSON in and out
READING: Dict[str, str] = {
    "snapshot": "node.snapshot:collect",
    "dropin": "node.dropin:look",
    "wheels": "node.wheels:look",
    "artifact": "node.artifact:look",
    "patch look": "node.patching:look",
    "journal look": "node.journal:look",
    "tree list": "node.tree_list:list_all",
    "venv look": "node.venv_place:look",
    "venv check": "node.venv_check:look",
    "kernel": "node.kernel:collect",
    "hardware": "node.hardware:collect",
    "wake": "node.magic:wake",
    "library look": "node.library:look",
    "library check": "node.libcandidate:candidate",
    "kube look": "node.kubelook:look",
    "kube answer": "node.kubeanswer:look",
    "models look": "node.modelfile:look",
    "answer look": "node.answerlook:look",
}
# JSON in and out; they may change the host, so signals are caught and undone steps are told
CHANGING: Dict[str, str] = {
    "apply": "node.change:apply",
    "file install": "node.change:install",
    "close": "node.change:close",
    "reap": "node.reap:reap",
    "shm": "node.shm_clean:shm",
    "caches": "node.caches:caches",
    "patch tool": "node.patchtool:run_tool",
    "tree backup": "node.tree_backup:backup",
    "tree verify": "node.tree_verify:verify",
    "tree restore": "node.tree_restore:restore",
    "tree prune": "node.tree_list:prune",
    "venv install": "node.venv_install:install",
    "venv replace": "node.venv_replace:replace",
    "venv prune": "node.venv_prune:prune",
    "image offer": "node.image:offer_image",
    "image receive": "node.image:receive",
    "image tag": "node.image:tag",
    "weights offer": "node.weightsoffer:offer_weights",
    "weights receive": "node.weights:receive",
    "weights hash": "node.weightsoffer:hashed",
    "kube restart": "node.kuberestart:restart",
}
# words and JSON alike, for a person at the console too (node/console.py)
CONSOLE: Dict[str, str] = {
    "status": "node.console:status",
    "journal": "node.console:journal",
    "undo": "node.console:undo",
    "lock": "node.console:lock",
}
# run by systemd: lines for the journal, no request (node/unitverbs.py)
UNIT: Dict[str, str] = {
    "prelaunch": "node.prelaunch:run",
    "answer": "node.answer:run",
    "pair": "node.pair:run",
    "watch": "node.watch:run",
    "candidate": "node.candidate:run",
    "library guard": "node.libguard:run",
    "container stop": "node.prelaunch:stop_container",
    "container remove": "node.prelaunch:remove_container",
}
ALL: Dict[str, str] = {**READING, **CHANGING, **CONSOLE, **UNIT}
# `rignode VERB --dry` at the console asks for {"dry": true}
WITH_DRY = ("reap", "shm", "caches")


def module_of(verb: str) -> str:
    """Gives the module that a verb lives in. Raises ValueError when there is no such verb."""
    if verb not in ALL:
        raise ValueError(f"not a verb: {verb!r}")
    return ALL[verb].partition(":")[0]


def function_of(verb: str) -> Callable[..., Any]:
    """Gives a verb's function."""
    module, _, name = ALL[verb].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def run(verb: str, request: Json) -> Json:
    """Runs a reading or changing verb; gives its answer."""
    answer: Json = function_of(verb)(request)
    return answer
