"""preflight: what the vLLM that is to come says of its command line, before the one that serves is
stopped.

The parser is the target's own (node/engine/preflight.py): of its image, in a container without
network that is gone afterwards, or of its venv, as the engine's user. Without a GPU, and within
limits of time and memory. Nothing of ours is written; vLLM may
fill its own cache, in the home of a venv's user.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from node import gpus
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.owner import SHELL, Owner
from node.core.run import Done, TimedOut, run
from node.docker import api

# What asks a vLLM's own parser about a command line: a program for that vLLM's own Python.
#
# It runs `vllm serve` as its console script does, with the server's start replaced: plugins,
# parser
# and `validate` are the target's own, wherever a version keeps them (vllm/entrypoints/cli/main.py
# and
# serve.py). The arguments become an AsyncEngineArgs as there, JSON arguments its configs, and
# ModelConfig reads the model's config.json: both need no GPU. Later checks (of memory, of the
# ranks)
# need one, or the other nodes.

# the line in which PROGRAM answers
ANSWER = "RIGBOOK-PARSER "
# Arguments: seconds until it ends itself, then those of `vllm`.
PROGRAM = (
    f"ANSWER = {ANSWER!r}\n"
    + """\
import argparse, json, os, resource, signal, sys, traceback

class Refused(Exception):
    pass

def refuse(parser, message):
    raise Refused(message)

def known(module, manager, flag, name, plugin):
    if not name or plugin:
        return
    try:
        there = getattr(__import__(module, fromlist=["x"]), manager).list_registered()
    except (ImportError, AttributeError):
        return
    if name not in there:
        raise Refused(f"{flag} {name}: not one of {', '.join(sorted(there))}")

def checked(args):
    found["outcome"] = "accepted"
    of = lambda name: getattr(args, name, None)
    args.model = of("model_tag") or args.model
    known("vllm.tool_parsers", "ToolParserManager", "--tool-call-parser",
          of("tool_call_parser"), of("tool_parser_plugin"))
    known("vllm.reasoning", "ReasoningParserManager", "--reasoning-parser",
          of("reasoning_parser"), of("reasoning_parser_plugin"))
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    try:
        engine = AsyncEngineArgs.from_cli_args(args)
    except ValueError as error:
        raise Refused(told(error)) from None
    if of("headless") or not os.path.exists(engine.model):
        return
    try:
        engine.create_model_config()
    except Exception as error:
        # without its GPU a platform is not known, and a refusal may be due to that
        sure = "max_model_len" in str(error) or not current_platform.is_unspecified()
        if isinstance(error, ValueError) and sure:
            raise Refused(told(error)) from None
        found["unsure"] = told(error)

def told(error):
    text = " ".join(str(error).split())[:600]
    plain = isinstance(error, (Refused, ValueError)) and text
    return text if plain else f"{type(error).__name__}: {text}"

found = {"outcome": "unchecked"}
seconds, *words = sys.argv[1:]
signal.alarm(int(seconds))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    # whoever runs short of memory ends this first, not the engine that serves
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
except OSError:
    pass
argparse.ArgumentParser.error = refuse
sys.argv = ["vllm", *words]
try:
    if "--omni" in words:
        raise RuntimeError("--omni starts another server")
    from vllm import platforms
    if platforms.current_platform.is_unspecified():
        # no GPU here: its parser fails at a default, DeviceConfig, which wants the name of a device
        platforms.current_platform.device_type = "cuda"
    from vllm.entrypoints.cli import main, serve
    serve.ServeSubcommand.cmd = staticmethod(checked)
    main.main()
except Refused as error:
    found.update(outcome="refused", said=told(error))
except SystemExit as error:
    found.update(outcome="refused" if error.code == 2 else "unchecked",
                 said=f"its parser ended with {error.code}")
except BaseException as error:
    names = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    judged = isinstance(error, (ValueError, TypeError)) and names & {"parse_args", "validate"}
    outcome = "refused" if judged and "checked" not in names else "unchecked"
    found.update(outcome=outcome, said=told(error))
print(ANSWER + json.dumps(found), flush=True)
os._exit(0)
"""
)


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
    available = gpus.read_memory()["available"]
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
            api.remove_container(name)
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
