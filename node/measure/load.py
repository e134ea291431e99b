"""measure load: rounds of answers that the engine's own client asks the engine for.

The client runs where the engine runs, in its container or its venv, without a GPU and as what ends
first when memory runs short. It knows the model's tokenizer and is of the engine's version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from node.core import validate
from node.core.engine_python import SHELL
from node.core.errors import Json, NodeError
from node.core.run import Done, TimedOut, run
from node.core.run_as_owner import Owner
from node.measure.client import ANSWER, PROGRAM
from node.snapshot import memory

DOCKER = "/usr/bin/docker"
# Importing vLLM takes 1 to 2 GiB; beside an engine that has nearly all memory it is not begun.
NEED_BYTES = 3 << 30
_JOB = ("url", "model", "name", "tokenizer", "mode", "trust", "template", "tokens", "seed",
        "rounds")  # fmt: skip
# MAX_ARG_STRLEN of the kernel is 128 KiB.
_MOST = 100_000
_QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # its session believes the environment
    "NO_PROXY": "*",
    "no_proxy": "*",
}


def load(request: Json) -> Json:
    """`measure load`: runs the job's rounds one after the other.

    Takes `job` (of `rounds` each is a list of prompts that are asked at the same time, or a number:
    a prompt of that many tokens, asked twice), `seconds` at most, `container`, or `venv` with
    `user`; `key` is the endpoint's. Gives `client`, `rounds`, and `error` where it was cut short.
    Raises NodeError where it could not begin.
    """
    keys = ("job", "seconds", "container", "venv", "user", "environ", "key")
    body = validate.keys(request, "request", keys, ("job", "seconds"))
    job = json.dumps(validate.keys(body["job"], "job", _JOB, _JOB))
    if len(job) > _MOST:
        raise validate.bad(f"job has more than {_MOST} characters")
    seconds = int(validate.number(body["seconds"], "seconds", 1, 3600))
    available = memory.read()["available"]
    if available < NEED_BYTES:
        raise NodeError(
            f"{available / (1 << 30):.1f} GiB of memory are available, and vLLM's client beside "
            f"the engine needs {NEED_BYTES >> 30} GiB",
            "memory",
        )
    values = {**dict(body.get("environ") or {}), **_QUIET}
    if body.get("key"):
        values["OPENAI_API_KEY"] = validate.text(body["key"], "key")
    words = [str(seconds), job]
    try:
        if "venv" in body:
            venv, user = validate.path(body["venv"], "venv"), validate.name(body["user"], "user")
            done = _in_venv(venv, user, words, values, seconds)
        else:
            name = validate.text(body.get("container"), "container")
            done = _in_container(name, words, values, seconds)
    except (TimedOut, OSError) as error:
        raise NodeError(f"vLLM's client could not be run: {error}", "client") from None
    return _answer(done)


def _in_venv(
    venv: str, user: str, words: list[str], values: Mapping[str, str], seconds: int
) -> Done:
    path = f"{venv}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"
    argv = [os.path.join(venv, "bin", "python"), "-c", PROGRAM, *words]
    return Owner(venv, user).run(argv, seconds + 10.0, {"PATH": path, **values})


def _in_container(name: str, words: list[str], values: Mapping[str, str], seconds: int) -> Done:
    """Gives what the program said in the running container. It ends itself: the end of docker's
    client does not reach it (moby#9098).
    """
    # From memory: what stands in a command line every user reads, and no file is written. docker
    # opens it by that name, from its beginning (seen of its client 20.10 and 26.1).
    fd = os.memfd_create("rigbook-measure", 0)
    try:
        os.write(fd, "".join(f"{key}={value}\n" for key, value in values.items()).encode())
        argv = [DOCKER, "exec", "--env-file", f"/proc/self/fd/{fd}", name, "/bin/bash", "-c",
                SHELL, "rigbook-measure", PROGRAM, *words]  # fmt: skip
        return run(argv, seconds + 10.0, pass_fds=(fd,))
    finally:
        os.close(fd)


def _answer(done: Done) -> Json:
    """Gives the program's rows. Raises NodeError where there is none."""
    rows: list[Json] = []
    for line in done.out.splitlines():
        if line.startswith(ANSWER):
            try:
                rows.append(json.loads(line[len(ANSWER) :]))
            except ValueError:
                continue
    client = next((row["client"] for row in rows if "client" in row), None)
    error = next((row["error"] for row in rows if "error" in row), None)
    if client is None:
        ends = {137: "it was ended, as for its memory", 142: "it did not end in its time"}
        code = done.rc if done.rc >= 0 else 128 - done.rc
        said = error or ends.get(code) or done.last_line()[:300]
        raise NodeError(f"vLLM's client could not be run: {said}", "client")
    if error is None and not any("end" in row for row in rows):
        error = "it did not end in its time" if done.rc in (142, -14) else "it was ended"
    made = [row for row in rows if "round" in row or "cold" in row]
    return {"client": client, "rounds": made, "error": error}
