"""The verbs and the functions behind them, each imported only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from node.core.errors import Json

# other reading verbs in one process
SEVERAL = "several"
# read-only, JSON in and out
READING: dict[str, str] = {
    SEVERAL: "node.cli.several:several",
    "snapshot": "node.snapshot.collect:collect",
    "dropin": "node.systemd.dropin_check:check_drop_in",
    "wheels": "node.venv.pip_plan:inspect_wheels",
    "artifact": "node.venv.artifact:inspect_artifact",
    "patch look": "node.patch.inspect:inspect_patches",
    "growth": "node.growth.prune:growth",
    "tree list": "node.backup.listing:list_all",
    "tree copies": "node.copies.others:copies",
    "venv look": "node.venv.versions:inspect_versions",
    "venv check": "node.venv.check:check_venv",
    "preflight": "node.engine.preflight:preflight",
    "engine answer": "node.watch.answer:answer",
    "secrets look": "node.files.secret_env:look",
    "kernel": "node.kernel.report:collect",
    "driver": "node.driver.report:look",
    "driver cdi": "node.driver.prove:cdi",
    "driver prove": "node.driver.prove:prove",
    "hardware": "node.machine.report:collect",
    "health": "node.health.report:health",
    "host": "node.host.report:collect",
    "measure load": "node.measure.load:load",
    "measure sample": "node.measure.sample:sample",
    "rate look": "node.transfer.rate:look",
    "rate receive": "node.transfer.rate:receive",
    "rate send": "node.transfer.rate:send",
    "wake": "node.machine.wake_packet:wake",
    "library look": "node.vgpu.inspect:inspect_library",
    "library check": "node.vgpu.candidate:candidate",
    "former": "node.former.look:look",
    "kube look": "node.kube.inspect:inspect_deployment",
    "kube answer": "node.kube.answer:ask_pod",
    "weights hub": "node.weights.hub:look",
    "models look": "node.weights.model_header:inspect_models",
}
# JSON in and out; they may change the host, so signals are caught and undone steps are told
CHANGING: dict[str, str] = {
    "apply": "node.change.apply:apply",
    "close": "node.growth.prune:close",
    "prune": "node.growth.prune:prune",
    "claim": "node.engine.held_stopped:claim_change",
    "lease": "node.lease.arm:arm",
    "beat": "node.change.claim:beat",
    "driver fetch": "node.driver.store:fetch",
    "reap": "node.reap.reap:reap",
    "shm": "node.reap.shared_memory:shm",
    "caches": "node.engine.page_cache:caches",
    "patch tool": "node.patch.run_tool:run_tool",
    "tree backup": "node.backup.create:backup",
    "tree verify": "node.backup.verify:verify",
    "tree copy": "node.copies.copy:copy",
    "tree take": "node.copies.copy:take",
    "tree unpack": "node.restore.restore:unpack",
    "tree restore": "node.restore.restore:restore",
    "tree offer": "node.copies.offer:offer",
    "tree receive": "node.copies.receive:receive",
    "tree note": "node.copies.others:note",
    "tree prune": "node.backup.listing:prune",
    "measure keep": "node.measure.keep:keep",
    "venv install": "node.venv.install:install",
    "venv prune": "node.venv.prune:prune",
    "image offer": "node.image.verbs:offer_image",
    "image receive": "node.image.verbs:receive",
    "image tag": "node.image.verbs:tag",
    "weights offer": "node.weights.offer:offer_weights",
    "weights receive": "node.weights.receive:receive",
    "weights download": "node.weights.hub:download",
    "weights hash": "node.weights.offer:hashed",
    "kube restart": "node.kube.restart:restart",
}
# words and JSON alike, for a person at the console too (node/cli/console.py)
CONSOLE: dict[str, str] = {
    "status": "node.cli.console:status",
    "journal": "node.cli.console:journal",
    "undo": "node.cli.console:undo",
    "lock": "node.cli.console:lock",
    "progress": "node.cli.progress:console",
}
# run by systemd: lines for the journal, no request (node/cli/systemd_entry.py)
UNIT: dict[str, str] = {
    "prelaunch": "node.engine.prelaunch:run",
    "answer": "node.engine.await_answer:run",
    "pair": "node.engine.peer_watchdog:run",
    "watch": "node.watch.watch:run",
    "watch pod": "node.kube.watched:run",
    "lease keep": "node.lease.keeper:run",
    "candidate": "node.kernel.candidate:run",
    "library guard": "node.vgpu.guard:run",
    "limit guard": "node.kube.limit_guard:run",
    "container stop": "node.engine.prelaunch:stop_container",
    "container remove": "node.engine.prelaunch:remove_container",
}
ALL: dict[str, str] = {**READING, **CHANGING, **CONSOLE, **UNIT}
# what goes back or makes room: run from memory where the program cannot be installed (a full disk)
FROM_MEMORY = ("claim", "undo", "close", "journal", "prune", "tree prune", "venv prune")
# of a change that this version does not understand: the program that wrote it takes over
HANDED_OVER = ("undo", "close")
# `rignode VERB --dry` at the console asks for {"dry": true}
WITH_DRY = ("reap", "shm", "caches", "prune")


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
    if verb == SEVERAL:
        others = {name: partial(run, name) for name in READING if name != SEVERAL}
        found: Json = function_of(verb)(request, others)
        return found
    answer: Json = function_of(verb)(request)
    return answer
