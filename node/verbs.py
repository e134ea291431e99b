"""The tables of verbs, their requests, several in one process, and what systemd starts."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from node.core import errors, validate
from node.core.errors import Json, NodeError, failure, io_reason

# The request of a verb: a JSON object as the last argument, or on stdin.

USAGE = "usage: rignode VERB"
# what stdin held, for a program that takes this one's place
_stdin = b""


def request_usage(message: str) -> NodeError:
    """Gives the error for a command line that cannot be understood (exit status 2)."""
    return NodeError(message, "usage", USAGE, 2)


def read_request(args: list[str], console: bool) -> Json:
    """Gives the JSON object of the last argument, else of stdin; {} at a terminal.

    A console verb with nothing on stdin gets {} as well.
    """
    if args:
        if len(args) > 1 or not args[0].startswith("{"):
            raise request_usage(f"unknown argument {args[0][:60]!r}")
        text = args[0]
    elif sys.stdin is None or sys.stdin.isatty():
        text = ""
    else:
        global _stdin
        _stdin = sys.stdin.buffer.read()
        text = _stdin.decode("utf-8", "replace")
    if not text.strip():
        if console:
            return {}
        raise request_usage("no JSON object on stdin")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise request_usage(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise request_usage("the request is not a JSON object")
    return value


def hand_over(program: str, argv: list[str]) -> None:
    """Become another version of the program, which is asked the same, also by stdin."""
    if _stdin:
        fd = os.memfd_create("request", 0)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(_stdin)
        os.lseek(fd, 0, os.SEEK_SET)
        os.dup2(fd, 0)
    os.execv(sys.executable, [sys.executable, "-I", "-B", program, *argv])


# The verbs and the functions behind them, each imported only when it runs.

# other reading verbs in one process
SEVERAL = "several"
# read-only, JSON in and out
READING: dict[str, str] = {
    SEVERAL: "node.verbs:several",
    "snapshot": "node.snapshot:collect",
    "dropin": "node.dropin:check_drop_in",
    "wheels": "node.venv.versions:inspect_wheels",
    "artifact": "node.venv.artifact:inspect_artifact",
    "patch look": "node.venv.artifact:inspect_patches",
    "growth": "node.growth:growth",
    "tree list": "node.backup.listing:list_all",
    "tree copies": "node.backup.listing:copies",
    "venv look": "node.venv.versions:inspect_versions",
    "venv check": "node.venv.versions:check_venv",
    "preflight": "node.engine.preflight:preflight",
    "engine answer": "node.engine.answer:answer",
    "secrets look": "node.core.owner:look_at_secrets",
    "kernel": "node.kernel.boot:collect_kernel",
    "driver": "node.kernel.driver_report:look_at_driver",
    "driver cdi": "node.kernel.driver:cdi",
    "driver prove": "node.kernel.driver:prove",
    "hardware": "node.machine:collect_hardware",
    "health": "node.health:health",
    "host": "node.host:collect_host",
    "measure load": "node.measure:load_engine",
    "measure sample": "node.measure:sample",
    "rate look": "node.transfer.protocol:look_at_rate",
    "rate receive": "node.transfer.protocol:receive_rate",
    "rate send": "node.transfer.protocol:send_rate",
    "wake": "node.machine:wake",
    "library look": "node.vgpu:inspect_library",
    "library check": "node.vgpu:check_candidate",
    "former": "node.former:look_former",
    "kube look": "node.kube.inspect:inspect_deployment",
    "kube answer": "node.kube.answer:ask_pod",
    "weights hub": "node.transfer.hub:look",
    "models look": "node.transfer.manifest:inspect_models",
}
# JSON in and out; they may change the host, so signals are caught and undone steps are told
CHANGING: dict[str, str] = {
    "apply": "node.change.apply:apply",
    "close": "node.growth:close_prune",
    "prune": "node.growth:prune",
    "claim": "node.engine.start:claim_change",
    "lease": "node.lease:arm",
    "beat": "node.change.transaction:beat",
    "driver fetch": "node.kernel.driver_report:fetch_packages",
    "reap": "node.reap:reap",
    "shm": "node.reap:shm",
    "caches": "node.engine.start:caches",
    "patch tool": "node.venv.patch_tool:run_tool",
    "tree backup": "node.backup.create:backup",
    "tree verify": "node.backup.verify:verify",
    "tree copy": "node.backup.copies:copy",
    "tree take": "node.backup.copies:take",
    "tree unpack": "node.backup.restore:unpack",
    "tree restore": "node.backup.restore:restore",
    "tree offer": "node.backup.copies:offer",
    "tree receive": "node.backup.copies:receive",
    "tree note": "node.backup.listing:note",
    "tree prune": "node.backup.listing:prune",
    "measure keep": "node.measure:keep_run",
    "venv install": "node.venv.install:install",
    "venv prune": "node.venv.install:prune",
    "image offer": "node.docker.receive:offer_image",
    "image receive": "node.docker.receive:receive",
    "image tag": "node.docker.receive:tag",
    "weights offer": "node.transfer.weights:offer_weights",
    "weights receive": "node.transfer.weights:receive",
    "weights download": "node.transfer.hub:download",
    "weights hash": "node.transfer.weights:hashed",
    "kube restart": "node.kube.deployment_step:restart_deployment",
}
# words and JSON alike, for a person at the console too (node/console.py)
CONSOLE: dict[str, str] = {
    "status": "node.console:status",
    "journal": "node.console:show_journal",
    "undo": "node.console:undo",
    "lock": "node.console:lock",
    "progress": "node.console:console",
}
# run by systemd: lines for the journal, no request (node/verbs.py)
UNIT: dict[str, str] = {
    "prelaunch": "node.engine.start:run_prelaunch",
    "answer": "node.engine.answer:run_await_answer",
    "pair": "node.engine.peer:run_peer_watchdog",
    "watch": "node.engine.watch:run",
    "watch pod": "node.kube.watched:run_pod_watch",
    "lease keep": "node.lease:run_keeper",
    "candidate": "node.kernel.grub_step:run_candidate",
    "library guard": "node.kube.watched:run_library_guard",
    "limit guard": "node.kube.watched:run_limit_guard",
    "container stop": "node.engine.start:stop_container",
    "container remove": "node.engine.start:remove_container",
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


# several: other reading verbs in one process, at the same time; each answers and fails by itself.
#
# One start of Python on a host, one ssh channel and one sudo in place of one for each verb.

MOST_S = 3600.0


def parse_parts(request: Json, verbs: Collection[str]) -> dict[str, tuple[Json, float]]:
    """Gives each verb's request and how many seconds it may take. Raises NodeError."""
    body = validate.keys(request, "request", ("parts",), ("parts",))
    rows = validate.array(body["parts"], "parts", 20)
    found: dict[str, tuple[Json, float]] = {}
    for number, row in enumerate(rows):
        where = f"parts[{number}]"
        names = ("verb", "request", "seconds")
        part = validate.keys(row, where, names, names)
        verb = validate.choice(part["verb"], f"{where}.verb", verbs)
        if verb in found:
            raise validate.bad(f"{where}: {verb} is asked twice")
        seconds = validate.number(part["seconds"], f"{where}.seconds", 1, MOST_S)
        found[verb] = (part["request"], seconds)
    return found


def several(request: Json, verbs: Mapping[str, Callable[[Any], Json]]) -> Json:
    """Gives `parts`: by verb the document that it prints alone, also one that tells its failure.

    `verbs`: those that may be asked. What gives no answer within its seconds is told as such, and
    the others are given all the same.
    """
    began = time.monotonic()
    parts = parse_parts(request, verbs)
    answers: dict[str, Json] = {}
    threads: dict[str, threading.Thread] = {}
    for verb, (asked, _) in parts.items():

        def work(verb: str = verb, asked: Any = asked) -> None:
            try:
                answers[verb] = {"ok": True, **verbs[verb](asked)}
            except BaseException as error:  # also a SystemExit: it is this part's alone
                answers[verb] = failure(error)

        # daemon: one stuck in the kernel must not keep the program from ending
        threads[verb] = threading.Thread(target=work, name=verb, daemon=True)
        threads[verb].start()
    for verb, (_, seconds) in parts.items():
        threads[verb].join(max(0.0, began + seconds - time.monotonic()))
    return {"parts": {verb: answers.get(verb) or _late(seconds)
                      for verb, (_, seconds) in parts.items()}}  # fmt: skip


def _late(seconds: float) -> Json:
    return {"ok": False, "error": f"no answer in {seconds:g} s", "code": "late", "remedy": ""}


# The verbs that systemd runs: they log lines instead of answering JSON, and take no request.


def run_unit(verb: str) -> int:
    """Runs the verb of that name; gives the exit status: 1 after one line that says why."""
    try:
        function_of(verb)()
        return 0
    except NodeError as error:
        line = f"{error}; {error.remedy}" if error.remedy else str(error)
    except OSError as error:
        line = io_reason(error)
    except Exception as error:
        line = f"a fault of rignode itself: {type(error).__name__}: {error}"
    errors.log(f"{verb}: {line}", errors.ERROR)
    return 1
