"""A measurement's load on the host, its samples, and what is kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping

from node import gpus
from node.core import files, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.owner import SHELL, Owner
from node.core.run import Done, TimedOut, run

# Measuring an engine: load by vLLM's own client, a sample of the node, results that are kept.

# What loads a vLLM with vLLM's own client: a program for the engine's own Python.
#
# `vllm bench serve` as a module (vllm/benchmarks/serve.py): its parser, its requests, its clock.
# Only
# the prompts are ours, because its random ones are words without sense, whose drafts are accepted
# at
# another rate, and its files of prompts want pandas. One process makes all rounds of a point,
# since
# importing vLLM takes 8 s. It writes nothing.

# what the lines begin with in which PROGRAM answers
ANSWER = "RIGBOOK-BENCH "
# Arguments: seconds until it ends itself, and the job as JSON (node/measure.py has its keys).
PROGRAM = (
    f"ANSWER = {ANSWER!r}\n"
    + """\
import argparse, json, os, random, resource, signal, sys

def say(**row):
    print(ANSWER + json.dumps(row), flush=True)

seconds, text = sys.argv[1:]
signal.alarm(int(seconds))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    # whoever runs short of memory ends this first, not the engine that serves
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
except OSError:
    pass
job = json.loads(text)

def words(length, seed):
    # a text of that many tokens that nobody has asked before
    tokenizer = serve.get_tokenizer(
        job["tokenizer"], tokenizer_mode=job["mode"], trust_remote_code=job["trust"])
    made = random.Random(seed)
    some = "river stone paper light garden winter letter bridge engine silver harbour music".split()
    text = seed + " " + " ".join(made.choice(some) for _ in range(length))
    ids = tokenizer.encode(text)
    while len(ids) < length:
        text += " " + " ".join(made.choice(some) for _ in range(length))
        ids = tokenizer.encode(text)
    return tokenizer.decode(ids[:length])

def share(values, part):
    ordered = sorted(values)
    return ordered[round(part * (len(ordered) - 1))] if ordered else None

def one(prompts, tokens):
    asked = [SampleRequest(prompt=p, prompt_len=1, expected_output_len=tokens) for p in prompts]
    serve.get_samples = lambda *a, **k: asked
    argv = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
            "--base-url", job["url"], "--model", job["model"], "--served-model-name", job["name"],
            "--tokenizer", job["tokenizer"], "--tokenizer-mode", job["mode"],
            "--dataset-name", "custom", "--num-prompts", str(len(prompts)),
            "--max-concurrency", str(len(prompts)), "--num-warmups", "0",
            "--ready-check-timeout-sec", "0", "--temperature", "0", "--ignore-eos",
            "--save-detailed", "--disable-tqdm"]
    if job["trust"]:
        argv.append("--trust-remote-code")
    if job["template"]:
        argv += ["--extra-body", json.dumps({"chat_template_kwargs": job["template"]})]
    made = serve.main(parser.parse_args(argv))
    errors = [text.strip().splitlines()[-1][:300] for text in made["errors"] if text.strip()]
    good = [n for n, text in enumerate(made["errors"]) if not text.strip()]
    gaps = [gap for n in good for gap in made["itls"][n]]
    rates = [(made["output_lens"][n] - 1) / sum(made["itls"][n]) for n in good
             if made["output_lens"][n] > 1 and sum(made["itls"][n]) > 0]
    return {"seconds": made["duration"], "tokens": sum(made["output_lens"][n] for n in good),
            "failed": len(prompts) - len(good), "ttft_s": [made["ttfts"][n] for n in good],
            "stream_tok_s": rates, "itl_p50_s": share(gaps, 0.5), "itl_p95_s": share(gaps, 0.95),
            "errors": errors, "prompt_tokens": [made["input_lens"][n] for n in good]}

try:
    import vllm
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest
    parser = getattr(serve, "FlexibleArgumentParser", argparse.ArgumentParser)()
    serve.add_cli_args(parser)
    say(client="vllm bench serve " + str(getattr(vllm, "__version__", "")))
    for number, prompts in enumerate(job["rounds"]):
        if isinstance(prompts, int):
            again = [words(prompts, job["seed"] + str(number))]
            say(cold=one(again, 1), cached=one(again, 1))
        else:
            say(round=one(prompts, job["tokens"]))
    say(end=True)
except BaseException as error:
    told = " ".join(str(error).split())[:400]
    say(error=type(error).__name__ + (": " + told if told else ""))
os._exit(0)
"""
)


# measure load: rounds of answers that the engine's own client asks the engine for.
#
# The client runs where the engine runs, in its container or its venv, without a GPU and as what
# ends
# first when memory runs short. It knows the model's tokenizer and is of the engine's version.

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


def load_engine(request: Json) -> Json:
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
    available = gpus.read_memory()["available"]
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


# measure sample: what a node has of memory and of GPUs at this moment.


def sample(request: Json) -> Json:
    """`measure sample`: memory in bytes, the GPUs as `health` tells them, and bytes of theirs that
    are used (None on a GPU without memory of its own). `problem` says what could not be read.
    """
    found: Json = {"gpus": [], "vram": None, "problem": None}
    try:
        now = gpus.read_memory()
        found |= {key: now[key] for key in ("available", "page_cache", "shmem")}
        found["gpus"] = gpus.gpu_health()
        if found["gpus"]:
            used = [row["memory_used_mib"] for row in gpus.read_gpus()["gpus"]]
            known = [mib for mib in used if mib is not None]
            found["vram"] = sum(known) << 20 if known else None
    except (CannotRead, NodeError, OSError) as error:
        found["problem"] = str(error)
    return found


# measure keep: the documents of measurements on the host, the newest of them.

# A document has 10 to 300 kB: 15 MB at most.
KEEP_RUNS = 50
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-(bench|soak)-[0-9a-f]{4}\Z")


def folder() -> str:
    """Gives the folder of the documents, root's alone."""
    return os.path.join(files.state_root(), "measurements")


def kept_runs() -> list[str]:
    """Gives the ids, newest first: they begin with the time."""
    try:
        names = os.listdir(folder())
    except FileNotFoundError:
        return []
    ids = [name[: -len(".json")] for name in names if name.endswith(".json")]
    return sorted(filter(_NAME.match, ids), reverse=True)


def keep_run(request: Json) -> Json:
    """`measure keep`: writes `document` as `id`, and removes those beyond the newest KEEP."""
    body = validate.keys(request, "request", ("id", "document"), ("id", "document"))
    name = validate.text(body["id"], "id")
    if not _NAME.match(name):
        raise validate.bad(f"id is {name[:40]!r}, no measurement's")
    raw = json.dumps(body["document"], sort_keys=True).encode("utf-8") + b"\n"
    files.ensure_state()
    os.makedirs(folder(), mode=0o700, exist_ok=True)
    path = os.path.join(folder(), f"{name}.json")
    files.save_private(path, raw)
    for old in kept_runs()[KEEP_RUNS:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder(), f"{old}.json"))
    return {"path": path, "changed": True}
