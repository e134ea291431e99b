"""watch pod: the watch of a Deployment's engine: asked, judged, and restarted by a rollout.

What is not ours is left: nothing of the template is changed. A start of it is its pods by uid and
the restarts of their containers.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import secrets
import stat
import time

from node.change import apply, journal, transaction
from node.core import errors, files, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.files import Lock
from node.engine import answer as engine_answer
from node.engine import config, silence, watch
from node.engine import evidence as engine_evidence
from node.engine.answer import NO_ANSWER, Scrape
from node.engine.config import LibraryState
from node.engine.evidence import Part
from node.engine.peer import open_change
from node.engine.silence import Watch
from node.kube import answer, inspect, kubectl
from node.kube.inspect import LimitState, container_of
from node.rules.engine import Reply

KEYS = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "url", "service", "port")
KEY = "key_file"
RESTART_S = 30.0
LOCK_S = 0.2
LOG_LINES = 1000
# prints what a GET brought; any Python 3 in the pod
_GET = """
import sys,urllib.request as u
o=u.build_opener(u.ProxyHandler({}))
sys.stdout.write(o.open(sys.argv[1],timeout=float(sys.argv[2])).read(4<<20).decode("utf-8","replace"))
"""


class Pod:
    """node.engine.silence.Target of a Deployment. Raises NodeError for a bad configuration."""

    def __init__(self, conf: Watch) -> None:
        body = validate.keys(conf.deployment, "deployment", (*KEYS, KEY), KEYS)
        self.conf, self.body = conf, body
        self.client = kubectl.client(body["kubectl"], body["kubeconfig"])
        self.space = kubectl.kube_name(body["namespace"], "namespace")
        self.deployment = kubectl.kube_name(body["deployment"], "deployment")
        self.name = f"Deployment {self.space}/{self.deployment}"

    def ask(self, wait_s: float) -> Reply:
        """Asks the Deployment's own pods."""
        end = self.conf.endpoint
        given = {key: value for key, value in self.body.items() if value is not None}
        try:
            said = answer.ask_pod(
                {**given, "model": end.model, "reasoning": end.reasoning, "timeout_s": wait_s}
            )
        except NodeError as error:
            return Reply(False, str(error))
        detail = NO_ANSWER if "timed out" in said["detail"] else said["detail"]
        return Reply(said["answered"], detail, said["final"], said["model"], said["wants_key"])

    def _pods(self) -> list[Json]:
        try:
            found = inspect.get(self.client, self.space, self.deployment)
            return answer.running_pods(inspect.pods(self.client, self.space, found))
        except CannotRead as error:
            raise NodeError(str(error), "no_cluster", "see: kubectl get pods") from None

    def start(self) -> str | None:
        """Gives the pods that run, or None. One that loads gives no metrics: that is no silence."""
        found = []
        for pod in self._pods():
            boxes = (pod.get("status") or {}).get("containerStatuses") or []
            count = sum(int(box.get("restartCount") or 0) for box in boxes)
            found.append(f"{pod['metadata']['uid']}+{count}")
        return " ".join(sorted(found)) or None

    def _url(self) -> str | None:
        """Gives where this host reaches the engine; None: only the pod itself does."""
        if self.body["url"] is not None:
            return str(self.body["url"]).rstrip("/")
        if self.body["service"] is None:
            return None
        row = self.client.json(
            ["get", "service", self.body["service"], f"--namespace={self.space}"]
        )
        return answer.of_service(self.body["service"], row, self.body["port"])

    def scrape(self) -> Scrape | str:
        """Gives a reading of its /metrics, from here or by the pod's own Python."""
        try:
            url = self._url()
            if url is not None:
                return engine_answer.scrape_metrics(url)
            return engine_answer.parse_metrics(self._in_pod()) or "/metrics is not vLLM's"
        except (CannotRead, NodeError) as error:
            return NO_ANSWER if "timed out" in str(error) else str(error)

    def _in_pod(self) -> str:
        """Gives the text of /metrics. Raises CannotRead."""
        rows = self._pods()
        if not rows:
            raise CannotRead("no pod of it runs")
        found = inspect.get(self.client, self.space, self.deployment)
        # kubectl would take the pod's first one, which may be a sidecar that was put into it
        box = container_of(found, self.body["container"])["name"]
        pod = rows[0]["metadata"]["name"]
        words = ["exec", pod, f"--namespace={self.space}", f"--container={box}"]
        url = f"http://127.0.0.1:{self.body['port']}/metrics"
        limit = engine_answer.METRICS_TIMEOUT_S
        script = ["--", "python3", "-c", _GET, url, f"{limit:g}"]
        done = self.client.run(words, limit + 10, script)
        if done.rc != 0:
            raise CannotRead(done.last_line()[:300])
        return done.out

    def hints(self) -> tuple[bool | None, bool]:
        """The GPU is shared: others may keep it busy, so nothing is said of it."""
        return None, engine_evidence.compiles()

    def evidence(self, reason: str) -> str:
        """Keeps a bundle: the pods, their logs, and what the host says of the processes."""
        conf = self.conf
        about = {"rig": conf.rig, "node": conf.node, "name": self.name, "reason": reason}
        made = {
            "metrics.txt": Part(self._metrics_text),
            "pods.txt": Part(lambda: self._kubectl("get", "pods", "-o", "wide")),
            "engine.log": Part(self._logs, log=True),
            **engine_evidence.of_the_host(),
        }
        return engine_evidence.keep(self.deployment, about, made)

    def _metrics_text(self) -> str:
        url = self._url()
        return self._in_pod() if url is None else engine_evidence.of_metrics(url)

    def _kubectl(self, *words: str) -> str:
        done = self.client.run([*words, f"--namespace={self.space}"], RESTART_S)
        return done.out + done.err

    def _logs(self) -> str:
        return "".join(
            self._kubectl("logs", row["metadata"]["name"], f"--tail={LOG_LINES}",
                          "--all-containers=true")
            for row in self._pods()
        )  # fmt: skip

    def hindrance(self) -> str | None:
        """An operator is at work."""
        held, who = files.host_lock()
        return f"not restarted: the lock is held by {who}" if held else open_change()

    def restart(self) -> str | None:
        """Begins a rollout, under the host's lock."""
        try:
            with Lock("watch", LOCK_S):
                why_not = open_change()
                if why_not is not None:
                    return why_not
                done = self.client.run(
                    ["rollout", "restart", f"deployment/{self.deployment}",
                     f"--namespace={self.space}"], RESTART_S,
                )  # fmt: skip
        except (CannotRead, NodeError) as error:
            return f"not restarted: {error}"
        return None if done.rc == 0 else f"not restarted: {done.last_line()[:300]}"


def run_pod_watch() -> None:
    """The verb: one look at the Deployment that the configuration names."""
    conf = silence.load_watch()
    watch.inspect_endpoint(conf, Pod(conf))


# limit guard: notices that a chart was deployed again without what gpu_limit had set, and tells.
#
# Run by a timer. Nothing is set back: whoever deployed the chart may have meant its values. It
# waits
# while a change is open: it is then the operator's run that sets them.

MAX_PENDING = 20


def limit_state_path() -> str:
    """Gives where the guard's memory lies between two looks."""
    return os.path.join(files.state_root(), "limit", "guard.json")


def save_state_limit_guard(memory: Json) -> None:
    """Write the memory; it is on the disk on return."""
    files.ensure_state()
    files.save_state(limit_state_path(), memory)


def seen(known: LimitState) -> tuple[str, str]:
    """Gives (`set`, `reset` or `gone`, what a person reads). Raises NodeError and CannotRead when
    the cluster does not say: that is neither of them.
    """
    where = f"Deployment {known.namespace}/{known.deployment} on {known.node}"
    client = kubectl.client(known.kubectl, known.kubeconfig)
    try:
        deployment = inspect.get(client, known.namespace, known.deployment)
    except NodeError as error:
        if error.code != "no_deployment":
            raise
        return "gone", f"{where} is gone"
    lines = inspect.differing_limit(known, deployment)
    if not lines:
        return "set", f"{where} has again what gpu_limit set"
    return "reset", (
        f"{where} has lost what gpu_limit set: {'; '.join(lines)}; was its chart deployed again? "
        "It is left as it is; set it again with: deploys/gpu_limit.py"
    )


def inspect_limit(known: LimitState) -> None:
    """One look: told once for each thing that is seen; the memory is written before the notices."""
    status, text = seen(known)
    if journal.operator_at_work():
        errors.log("a change is open: not the guard's turn")
        return
    memory = files.load_state(limit_state_path(), {"told": None, "pending": []})
    # what it came from is part of it: a limit that was lost once more is told once more
    now = None if status == "set" else text
    if now != memory["told"]:
        errors.log(text, errors.WARNING)
        memory["pending"].append(
            {"rig": known.rig, "node": known.node, "status": f"limit-{status}", "text": text}
        )
    memory["pending"] = memory["pending"][-MAX_PENDING:]
    memory["told"] = now
    save_state_limit_guard(memory)
    url = silence.webhook_url(known.webhook, known.webhook_file)
    silence.deliver_notices(memory["pending"], url, lambda: save_state_limit_guard(memory))


def run_limit_guard() -> None:
    """The verb: one look at what was set; nothing where nothing is guarded."""
    known = inspect.read_limit()
    if known is not None:
        inspect_limit(known)


# library guard: notices that the plugin put its own library back, tells, and mends if it may.
#
# Run by rigbook-library.path when the file changes, and by a timer for what inotify misses. It
# waits while a change is open: it is then the operator's run that moves the file.

# a plugin that fights back is not fought for ever: each time it may kill who has the file mapped
MOST, WINDOW_S = 5, 3600.0
SETTLE_S = 1.0


def library_state_path() -> str:
    """Gives where the guard's memory lies between two looks."""
    return os.path.join(files.state_root(), "library", "guard.json")


def save_state_guard(memory: Json) -> None:
    """Write the memory; it is on the disk on return."""
    files.ensure_state()
    files.save_state(library_state_path(), memory)


def digest(path: str) -> str:
    """Gives the file's sha256, or `absent`, or `no plain file`."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return "no plain file"
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(files.MAX_BYTES)).hexdigest()
    except FileNotFoundError:
        return "absent"


def stable_digest(path: str) -> str:
    """Gives `digest` once two looks agree: a plugin's cp may be in the middle of the file."""
    now = digest(path)
    while True:
        time.sleep(SETTLE_S)
        again = digest(path)
        if again == now:
            return now
        now = again


def verdict(known: LibraryState, found: str) -> str:
    """Gives what lies there: `ours`, `original`, `absent`, or `other`."""
    names = {known.ours: "ours", known.original: "original", "absent": "absent"}
    return names.get(found, "other")


def judge_library(known: LibraryState, status: str, memory: Json, now: float) -> str | None:
    """Gives what to do about a status: `mend`, `tell`, or None. Pure.

    Told once for each change of the status. `other` is never overwritten: it may be a new plugin's
    own, fixed library.
    """
    if status == "ours":
        return "tell" if memory["status"] != "ours" else None
    recent = [at for at in memory["mended"] if 0 <= now - at < WINDOW_S]
    if status == "original" and known.reapply and len(recent) < MOST:
        return "mend"
    return "tell" if memory["status"] != status else None


def message(known: LibraryState, status: str, mended: bool, found: str) -> str:
    """Gives the line that a person reads."""
    where = f"{known.target} on {known.node}"
    if mended:
        return f"the plugin had put its own library back: {where} is ours again ({known.ours[:12]})"
    return {
        "ours": f"{where} is ours again ({known.ours[:12]})",
        "original": f"the plugin put its own library back: {where} is {known.original[:12]}, "
        f"not ours ({known.ours[:12]}); mend it with: deploys/libvgpu.py",
        "absent": f"{where} is gone; mend it with: deploys/libvgpu.py",
        "other": f"{where} is neither ours nor the original: {found[:12]}; a new plugin version? "
        "it is left as it is",
    }[status]


def mend(known: LibraryState) -> str:
    """Put our library in place of the original, as a change of its own; gives the change's id."""
    info = os.stat(known.target)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    identifier = f"{stamp}-guard-{secrets.token_hex(2)}"
    step = {
        "op": "file",
        "path": known.target,
        "blob": known.ours,
        "expect_sha256": known.original,
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "owner": pwd.getpwuid(info.st_uid).pw_name,
        "group": grp.getgrgid(info.st_gid).gr_name,
    }
    header = {"id": identifier, "deploy": "libvgpu", "operator": "rigbook-library guard"}
    apply.apply({"change": header, "steps": [step]})
    end = {"change": identifier, "status": "COMMITTED", "reason": "the guard put it back"}
    try:
        transaction.close(end)
    except NodeError as error:
        # overwritten again by now: a change of ours that stays open would keep everybody out
        for status in ("INCONSISTENT", "COMMITTED"):
            transaction.close({**end, "status": status, "reason": str(error)[:2000]})
        raise
    return identifier


def inspect_target(known: LibraryState) -> None:
    """One look: tells and mends; the memory is written before and after what is told."""
    found = digest(known.target)
    if found != known.ours:
        found = stable_digest(known.target)
    if journal.operator_at_work():
        errors.log("a change is open: not the guard's turn")
        return
    fresh: Json = {"status": "ours", "mended": [], "pending": []}
    memory, now = files.load_state(library_state_path(), fresh), time.time()
    status = verdict(known, found)
    todo, failed = judge_library(known, status, memory, now), None
    if todo == "mend":
        try:
            mend(known)
            memory["mended"] = [at for at in memory["mended"] if now - at < WINDOW_S] + [now]
        except NodeError as error:
            failed = str(error)
    mended = todo == "mend" and failed is None
    if mended or todo == "tell" or (failed and memory["status"] != status):
        text = message(known, status, mended, found) + (f" ({failed})" if failed else "")
        errors.log(text, errors.WARNING)
        shown = "mended" if mended else status
        memory["pending"].append(
            {"rig": known.rig, "node": known.node, "status": f"library-{shown}", "text": text}
        )
    memory["pending"] = memory["pending"][-MAX_PENDING:]
    memory["status"] = "ours" if mended else status
    save_state_guard(memory)
    url = silence.webhook_url(known.webhook, known.webhook_file)
    silence.deliver_notices(memory["pending"], url, lambda: save_state_guard(memory))


def run_library_guard() -> None:
    """The verb: one look at the library that was swapped; nothing where none was."""
    known = config.read_library()
    if known is not None and known.guard:
        inspect_target(known)
