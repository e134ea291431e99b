"""preflight: what the vLLM that is to come says of its command line, before the one that serves is
stopped.

The parser is the target's own (node/engine/parser_check.py): of its image, in a container without
network that is gone afterwards, or of its venv, as the engine's user. Without a GPU, and within
limits of time and memory. Nothing of ours is written; vLLM may
fill its own cache, in the home of a venv's user.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from node.core import validate
from node.core.engine_python import SHELL
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import Done, TimedOut, run
from node.core.run_as_owner import Owner
from node.docker import containers
from node.engine.parser_check import ANSWER, PROGRAM
from node.snapshot import memory

DOCKER = "/usr/bin/docker"
# Importing vLLM takes 8 s with a warm cache, and minutes from a cold disk.
TIMEOUT_S = 180
# An import of vLLM takes 1 to 2 GiB; beside an engine that has nearly all memory it is not begun.
NEED_BYTES = 3 << 30
LIMIT = "4g"
# Nothing is written, and no GPU is touched: what serves may have all of its memory.
_QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_NAME = "rigbook-preflight"


def preflight(request: Json) -> Json:
    """`preflight`: what the target's parser says of `argv`.

    Takes `argv` (from `vllm serve` on), `environ`, and `image` with `volumes` (source, target), or
    `venv` with `user`. Gives `outcome` (accepted, refused, unchecked; unreadable: the
    model, for the engine's user), `said` (the parser's words,
    or why it could not be asked), `unsure` (what the model's config said without a GPU), `took_s`.
    """
    keys = ("argv", "environ", "image", "volumes", "venv", "user", "timeout_s")
    body = validate.keys(request, "request", keys, ("argv", "environ"))
    argv = [str(word) for word in validate.array(body["argv"], "argv")][1:]
    environ = {str(name): str(value) for name, value in dict(body["environ"]).items()}
    timeout_s = int(validate.number(body.get("timeout_s", TIMEOUT_S), "timeout_s", 1, 900))
    started = time.monotonic()
    try:
        _require_memory()
        if "venv" in body:
            venv, user = validate.path(body["venv"], "venv"), validate.name(body["user"], "user")
            if said := _unread(Owner(venv, user), user, argv[1:2]):
                took_s = round(time.monotonic() - started, 1)
                return {"outcome": "unreadable", "said": said, "unsure": "", "took_s": took_s}
            done = _in_venv(venv, user, argv, environ, timeout_s)
        else:
            image = validate.image(body["image"], "image")
            done = _in_container(image, body.get("volumes", []), argv, environ, timeout_s)
        answer = _answer(done)
    except (NodeError, CannotRead, TimedOut, OSError) as error:
        answer = {"outcome": "unchecked", "said": str(error)}
    return {"said": "", "unsure": "", **answer, "took_s": round(time.monotonic() - started, 1)}


def _require_memory() -> None:
    """Raises NodeError where a check could cost the engine that serves its memory."""
    available = memory.read()["available"]
    if available < NEED_BYTES:
        raise NodeError(
            f"{available / (1 << 30):.1f} GiB of memory are available, and loading vLLM beside "
            f"what serves needs {NEED_BYTES >> 30} GiB",
            "memory",
        )


def _unread(owner: Owner, user: str, models: list[str]) -> str:
    """Gives which file of the model the engine's user cannot read, in words; "" where it can."""
    for path in models:
        if os.path.isabs(path) and os.path.exists(path):
            # hidden ones are no weights: .rigbook/displaced-… is root's alone; -type l: a dead link
            words = ["find", "-L", path, "-name", ".?*", "!", "-samefile", path, "-prune",
                     "-o", "!", "-type", "l", "!", "-readable", "-print", "-quit"]  # fmt: skip
            done = owner.run(words, TIMEOUT_S, {})
            if found := done.out.strip() or (done.rc and done.last_line()):
                return f"{user} cannot read {str(found).removeprefix('find: ')}"
    return ""


def _in_venv(
    venv: str, user: str, argv: list[str], environ: Mapping[str, str], timeout_s: int
) -> Done:
    """Gives what the program said in a venv, as the engine's user. Raises NodeError."""
    python = os.path.join(venv, "bin", "python")
    path = f"{venv}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"
    extra = {"PATH": path, **environ, **_QUIET, "CUDA_VISIBLE_DEVICES": ""}
    words = [python, "-c", PROGRAM, str(timeout_s), *argv]
    return Owner(venv, user).run(words, timeout_s + 10.0, extra)


def _in_container(
    image: str, volumes: object, argv: list[str], environ: Mapping[str, str], timeout_s: int
) -> Done:
    """Gives what the program said in a container of the image. Raises TimedOut and OSError."""
    name = f"{_NAME}-{os.getpid()}"
    values = {**environ, **_QUIET, "NVIDIA_VISIBLE_DEVICES": "void"}
    # From memory: what stands in a command line every user reads, and no file is written.
    fd = os.memfd_create(_NAME, 0)
    try:
        os.write(fd, "".join(f"{key}={value}\n" for key, value in values.items()).encode())
        words = [DOCKER, "run", "--rm", "--init", "--name", name, "--pull", "never",
                 "--network", "none", "--memory", LIMIT, "--memory-swap", LIMIT,
                 "--oom-score-adj", "1000", "--env-file", f"/proc/self/fd/{fd}"]  # fmt: skip
        for n, row in enumerate(validate.array(volumes, "volumes", 100)):
            source, target = (validate.path(path, f"volumes[{n}]") for path in list(row)[:2])
            # docker would make a folder that is not there, as root's
            if os.path.exists(source):
                words += ["-v", f"{source}:{target}:ro"]
        words += ["--entrypoint", "/bin/bash", image, "-c", SHELL, _NAME, PROGRAM, str(timeout_s)]
        try:
            return run([*words, *argv], timeout_s + 20.0, pass_fds=(fd,))
        except TimedOut:
            containers.remove(name)
            raise
    finally:
        os.close(fd)


def _answer(done: Done) -> Json:
    """Gives the program's own answer, or why there is none."""
    lines = [line for line in done.out.splitlines() if line.startswith(ANSWER)]
    try:
        found = json.loads(lines[-1][len(ANSWER) :])
        return {key: str(found[key]) for key in ("outcome", "said", "unsure") if key in found}
    except (IndexError, ValueError, TypeError):
        ends = {137: "it was ended, as for its memory", 142: "it did not end in its time"}
        why = ends.get(done.rc % 256 if done.rc >= 0 else 128 - done.rc)
        said = why or f"it ended with {done.rc}: {done.last_line()[:300]}"
        return {"outcome": "unchecked", "said": said}
