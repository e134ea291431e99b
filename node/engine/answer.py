"""engine answer: what this host's engine says to a completion now, asked on the host itself."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import signal
import time
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from node import processes
from node.core import errors, owner, proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api
from node.engine import config
from node.engine.config import Endpoint, Engine
from node.rules import engine as rules_engine
from node.rules.engine import Reply
from node.rules.secret import API_KEY, SECRETS_PATH

# HTTP without a proxy and without redirects, and one notice POSTed to a webhook.

WEBHOOK_TIMEOUT_S = 10.0
# what `reason` says of a server that took the connection and said nothing
NO_ANSWER = "no answer in time"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would turn a POST into a GET somewhere else: it is an answer like any other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Gives an opener that uses no proxy and follows no redirect."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def reason(error: Exception) -> str:
    """Gives why a request failed, in words that never hold its URL."""
    inner = getattr(error, "reason", None)
    if isinstance(error, urllib.error.URLError) and isinstance(inner, Exception):
        error = inner
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return NO_ANSWER
    if isinstance(error, OSError) and error.strerror and not hasattr(error, "library"):
        return error.strerror
    return type(error).__name__


def post(url: str, body: Json) -> str | None:
    """POSTs one notice; gives why it was not taken, never with the URL, or None."""
    try:
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode("utf-8"),
            headers={"Content-Type": "application/json", "User-Agent": "rigbook-watch"},
        )
        with opener().open(request, timeout=WEBHOOK_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except Exception as error:  # whatever it is: the notice stays, and the URL is not told
        return reason(error)


# One real chat completion, asked with the standard library: the only proof that a model serves.

MAX_COMPLETION_BYTES = 1 << 20


def question(endpoint: Endpoint) -> Json:
    """Gives the body of the request: a short completion."""
    return rules_engine.question(endpoint.model, endpoint.reasoning, endpoint.chat_template_kwargs)


def ask_completion(endpoint: Endpoint, timeout_s: float, key: str | None = None) -> Reply:
    """Asks for a completion, with the engine's key, and waits at most about `timeout_s` seconds."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        f"{endpoint.url}/v1/chat/completions",
        data=json.dumps(question(endpoint)).encode("utf-8"),
        headers=headers,
    )
    started = time.monotonic()
    try:
        with opener().open(request, timeout=timeout_s) as response:
            raw = _read(response, started + timeout_s)
    except urllib.error.HTTPError as error:
        return _refused(error)
    except (OSError, http.client.HTTPException) as error:
        return Reply(False, reason(error))
    return judge_completion(raw, endpoint, time.monotonic() - started)


def _read(response: Any, deadline: float) -> bytes:
    """Gives the body; a server that sends it byte by byte runs into the deadline."""
    raw = b""
    while len(raw) < MAX_COMPLETION_BYTES:
        part = response.read1(65536)
        if not part:
            break
        raw += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return raw


def _refused(error: urllib.error.HTTPError) -> Reply:
    """Gives the reply of an HTTP status that is not 2xx."""
    try:
        said = error.read(2000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        said = ""
    return rules_engine.refused(error.code, said)


def judge_completion(raw: bytes, endpoint: Endpoint, seconds: float) -> Reply:
    """Gives what a 200 is worth, in words with the seconds that it took."""
    reply = rules_engine.judge_reply(raw, endpoint.reasoning)
    return (
        reply._replace(detail=f"{reply.model} answered in {seconds:.1f} s") if reply.ok else reply
    )


# The key that this host's engine wants of its clients: what its secrets say, never in a log.


def key_path() -> str:
    """Gives the file of the secrets; RIGBOOK_SECRETS names another one (tests)."""
    return os.environ.get("RIGBOOK_SECRETS") or SECRETS_PATH


def key_of(engine: Engine) -> str | None:
    """Gives the key, or None: there is none, or it is not ours to read.

    A venv's unit has it in its environment, and its user may not read the file.
    """
    quoted = engine.venv is not None
    key = os.environ.get(API_KEY) or owner.value_of(key_path(), API_KEY, quoted)
    # An HTTP header takes no other, and the error about it would quote it.
    return key if key and key.isascii() and key.isprintable() else None


# Who holds the port that this host's engine answers on: its own unit or container, or another.


class Holder(NamedTuple):
    """A listener and the process that holds it (pid None: not visible)."""

    address: str
    port: int
    pid: int | None
    process: str | None
    unit: str | None
    container_id: str | None
    start_ticks: int | None


class Seen(NamedTuple):
    """Who holds the port: ours are told from others by `foreign`, in words (None: all are ours)."""

    holders: tuple[Holder, ...]
    foreign: str | None


def port_listeners(url: str) -> list[Holder]:
    """Gives what a connection to a URL may reach on this host."""
    where = urlsplit(url)
    number = where.port or (443 if where.scheme == "https" else 80)
    rows = (Holder(**row) for row in processes.read_ports(proc.open_files()))
    return rules_engine.owner_at(rows, number, where.hostname or "")


def look_at_port(engine: Engine) -> Seen:
    """Gives who would answer now. Raises CannotRead when that cannot be told."""
    if engine.endpoint is None:
        raise CannotRead(f"{engine.node} has no endpoint")
    held = port_listeners(engine.endpoint.url)
    if not held:
        raise CannotRead(f"nobody listens for {engine.endpoint.url} here")
    if any(row.pid is None for row in held):
        raise CannotRead(f"who holds port {held[0].port} is not visible")
    own = api.identifier(engine.container) if engine.container else None
    others = [row for row in held if not rules_engine.is_ours(row, engine.unit, own)]
    return Seen(tuple(held), _words(others[0], engine) if others else None)


def _words(row: Holder, engine: Engine) -> str:
    """Gives who it is in place of our engine."""
    by = f"unit {row.unit}" if row.unit else "no unit"
    by = f"container {row.container_id[:12]}" if row.container_id else by
    return f"port {row.port} is held by pid {row.pid} ({row.process}, {by}), not by {engine.unit}"


# What the engine's /metrics say of its work: how much runs, and marks that move while it works.

# the API process gives them without asking the engine; one that is busy may need seconds
METRICS_TIMEOUT_S = 5.0
MAX_METRICS_BYTES = 4 << 20
# Every one of them stands still while no step of the engine ends. The two names of the cache's use:
# V1 since 0.10, and the versions before (vllm/v1/metrics/loggers.py, its docs/design/metrics.md).
_STEPS = "vllm:kv_cache_usage_perc"
MARKS = (
    "vllm:iteration_tokens_total_sum",
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    _STEPS,
    "vllm:gpu_cache_usage_perc",
)
_TOKENS = frozenset(MARKS[:4])
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class Scrape(NamedTuple):
    """One reading: requests that run and that wait, and the marks by name.

    `by_step`: a mark moves with each step of a prefill too. The counters of tokens do not: vLLM
    counts a prompt once its last part is done, and gives no statistics of an iteration without an
    output (vllm/v1/engine/async_llm.py); the cache's use grows with each part.
    """

    running: float
    waiting: float
    marks: dict[str, float]
    by_step: bool


def parse_metrics(text: str) -> Scrape | None:
    """Gives the reading of the Prometheus text, summed over models and engines.

    None when it lacks the running requests or every counter of tokens: it is not vLLM's.
    """
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in MARKS and name not in (RUNNING, WAITING):
            continue
        # labels may hold blanks; behind them stand a value and perhaps a time
        words = line.rpartition("}")[2].split() if "{" in line else line.split()[1:]
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            sums[name] = sums.get(name, 0.0) + value
    marks = {name: sums[name] for name in MARKS if name in sums}
    if RUNNING not in sums or not _TOKENS & marks.keys():
        return None
    return Scrape(sums[RUNNING], sums.get(WAITING, 0.0), marks, _STEPS in marks)


def tokens_made(before: Scrape, after: Scrape) -> float | None:
    """Gives the tokens that were made between two readings; None where they do not say."""
    name = MARKS[2]
    if name not in before.marks or name not in after.marks:
        return None
    return max(0.0, after.marks[name] - before.marks[name])


def fetch_metrics(url: str, timeout_s: float = METRICS_TIMEOUT_S) -> tuple[str | None, str]:
    """Gives (the text, "") of an engine's /metrics, or (None, why not). They need no key."""
    deadline = time.monotonic() + timeout_s
    try:
        with opener().open(f"{url}/metrics", timeout=timeout_s) as response:
            raw = b""
            while len(raw) < MAX_METRICS_BYTES and (part := response.read1(65536)):
                raw += part
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")
    except urllib.error.HTTPError as error:
        return None, f"HTTP {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return None, reason(error)
    return raw.decode("utf-8", "replace"), ""


def scrape_metrics(url: str) -> Scrape | str:
    """Gives a reading, or why there is none: webhook.NO_ANSWER when nothing came in time."""
    text, why = fetch_metrics(url)
    if text is None:
        return why
    return parse_metrics(text) or "/metrics is not vLLM's"


# answer: wait until this host's engine gives a real completion (the head's ExecStartPost).
#
# systemd then calls the unit started only once it serves, and restarts it when it never does.

POLL_S = 2.0
PROGRESS_S = 10.0
# a busy host takes its time between `docker run` and the container
APPEAR_S = 120.0
GRACE_S = 10


class _Ended(Exception):
    """systemd ends the start: somebody stops the unit, or its time is over."""


class _Alive:
    """Whether the engine that systemd has just started is still there."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.started = time.monotonic()
        self.seen = False
        pid = os.environ.get("MAINPID", "")
        self.main: proc.Stat | None = proc.stat(int(pid)) if pid.isdigit() else None

    def ended(self) -> str | None:
        """Gives why the engine is over, or None."""
        if self.main is not None:
            now = proc.stat(self.main.pid)
            if now is None or now.start_ticks != self.main.start_ticks or now.state == "Z":
                return "docker run ended" if self.engine.container else "the engine's process ended"
        if self.engine.container is None:
            # systemd names no main process of a unit whose main process has ended already
            gone = self.main is None and "INVOCATION_ID" in os.environ
            return "the engine's process ended" if gone else None
        try:
            running = api.is_running(self.engine.container)
        except CannotRead:
            return None  # unknown is not gone; the budget ends the wait
        self.seen = self.seen or running
        if running:
            return None
        if self.seen:
            return f"the container {self.engine.container} is gone"
        late = time.monotonic() - self.started > APPEAR_S
        return f"no container {self.engine.container} after {APPEAR_S:.0f} s" if late else None


def await_answer(engine: Engine) -> str:
    """Waits for a completion within the engine's start budget; gives a line about it.

    Raises NodeError (`no_answer`) when the engine ended, answered in a way that waiting cannot
    mend, or the budget is over.
    """
    if engine.endpoint is None:
        return f"{engine.node} is a {engine.role}: the head answers"
    alive, key = _Alive(engine), key_of(engine)
    budget = engine.start_budget_s
    told = alive.started
    while True:
        passed = time.monotonic() - alive.started
        seconds = min(120.0, max(1.0, budget - passed))
        # whoever answers this gets no key
        reply = ask_completion(engine.endpoint, seconds)
        if reply.ok or reply.wants_key:
            # somebody answers: whose engine it is, is looked at around another answer
            reply = ask_ours(engine, engine.endpoint, seconds, key)
        passed = time.monotonic() - alive.started
        if reply.ok or (reply.wants_key and key is None):
            return f"{reply.detail}, {passed:.0f} s after the start"
        if reply.final:
            raise _failed(engine, reply, passed)
        gone = alive.ended()
        if gone:
            raise NodeError(f"no answer: {gone} after {passed:.0f} s", "no_answer", _look(engine))
        if passed >= budget:
            raise _failed(engine, reply, passed)
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            errors.log(f"waiting for an answer: {passed:.0f} s of {budget:.0f} s; {reply.detail}")
        time.sleep(POLL_S)


def ask_now(engine: Engine, seconds: float) -> Reply:
    """Asks once; the key goes to our own engine alone."""
    if engine.endpoint is None:
        return Reply(False, "this node has no endpoint", True)
    try:
        look_at_port(engine)
    except CannotRead:
        # nobody listens, or docker does not say who: asked, and whoever answers gets no key
        return ask_completion(engine.endpoint, seconds)
    try:
        return ask_ours(engine, engine.endpoint, seconds, key_of(engine))
    except NodeError as error:
        return Reply(False, str(error))


def ask_ours(engine: Engine, endpoint: Endpoint, seconds: float, key: str | None) -> Reply:
    """Gives the reply of our own engine, the same before and after it, or why there is none.

    Raises NodeError (`no_answer`) where somebody else holds the port: ours will not get it.
    """
    try:
        before = look_at_port(engine)
        reply = (
            ask_completion(endpoint, seconds, key) if before.foreign is None else Reply(False, "")
        )
        after = look_at_port(engine)
    except CannotRead as error:
        return Reply(False, f"whose engine it is: {error}")
    foreign = before.foreign or after.foreign
    if foreign is not None:
        port = after.holders[0].port if after.holders else ""
        look = f"ss -ltnp 'sport = :{port}'; stop what holds it, by its unit if it has one"
        raise NodeError(f"what answers is not this engine: {foreign}", "no_answer", look)
    if before != after:
        return Reply(False, "the engine was started anew while it was asked")
    return reply


def _look(engine: Engine) -> str:
    return f"journalctl -u {engine.unit} -n 100"


def _failed(engine: Engine, reply: Reply, passed: float) -> NodeError:
    text = f"no good answer after {passed:.0f} s of {engine.start_budget_s:.0f} s: {reply.detail}"
    return NodeError(text, "no_answer", _look(engine))


def _on_term(_number: int, _frame: object) -> None:
    raise _Ended


def run_await_answer() -> None:
    """The verb: reads this host's engine, waits, and says what answered.

    A stop during the start skips ExecStop (systemd.service(5)), and an engine that loads does not
    heed docker's TERM [ran: 60 s, then KILL]: so the container is ended from here.
    """
    engine = config.load_engine()
    signal.signal(signal.SIGTERM, _on_term)
    try:
        errors.log(await_answer(engine))
    except _Ended:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if engine.container is not None:
            with contextlib.suppress(CannotRead):
                api.stop_container(engine.container, GRACE_S)
        raise NodeError("systemd ended the start before an answer", "no_answer") from None


def answer(request: Any) -> Json:
    """Gives the reply; its own key goes to our engine alone. `made`: where nothing came in time,
    the tokens that it made for others meanwhile (null: it does not say). Read-only.
    """
    body = validate.keys(request, "request", ("timeout_s",), ("timeout_s",))
    seconds = validate.number(body["timeout_s"], "timeout_s", 1, 600)
    engine = config.load_engine()
    url = engine.endpoint.url if engine.endpoint else ""
    before = scrape_metrics(url) if url else ""
    reply = ask_now(engine, seconds)
    late, made = reply.detail == NO_ANSWER, None
    after = scrape_metrics(url) if late else before
    if late and isinstance(before, Scrape) and isinstance(after, Scrape):
        made = tokens_made(before, after)
    return {"answered": reply.ok, "detail": reply.detail, "final": reply.final,
            "model": reply.model, "wants_key": reply.wants_key, "late": late, "made": made,
            "where": url}  # fmt: skip
