"""watch pod: the watch of a Deployment's engine: asked, judged, and restarted by a rollout.

What is not ours is left: nothing of the template is changed. A start of it is its pods by uid and
the restarts of their containers.
"""

from __future__ import annotations

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.webhook import NO_ANSWER
from node.engine.peer_watchdog import open_change
from node.files import host_lock
from node.files.host_lock import Lock
from node.kube import answer, behind, inspect, kubectl, names
from node.kube.deployment import container_of
from node.rules.completion import Reply
from node.watch import config, evidence, metrics, own_unit, watch
from node.watch.config import Watch
from node.watch.evidence import Part
from node.watch.metrics import Scrape

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
    """node.watch.heal.Target of a Deployment. Raises NodeError for a bad configuration."""

    def __init__(self, conf: Watch) -> None:
        body = validate.keys(conf.deployment, "deployment", (*KEYS, KEY), KEYS)
        self.conf, self.body = conf, body
        self.client = kubectl.client(body["kubectl"], body["kubeconfig"])
        self.space = names.name(body["namespace"], "namespace")
        self.deployment = names.name(body["deployment"], "deployment")
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
            return behind.running(inspect.pods(self.client, self.space, found))
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
                return metrics.scrape(url)
            return metrics.parse(self._in_pod()) or "/metrics is not vLLM's"
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
        limit = metrics.TIMEOUT_S
        script = ["--", "python3", "-c", _GET, url, f"{limit:g}"]
        done = self.client.run(words, limit + 10, script)
        if done.rc != 0:
            raise CannotRead(done.last_line()[:300])
        return done.out

    def hints(self) -> tuple[bool | None, bool]:
        """The GPU is shared: others may keep it busy, so nothing is said of it."""
        return None, own_unit.compiles()

    def evidence(self, reason: str) -> str:
        """Keeps a bundle: the pods, their logs, and what the host says of the processes."""
        conf = self.conf
        about = {"rig": conf.rig, "node": conf.node, "name": self.name, "reason": reason}
        made = {
            "metrics.txt": Part(self._metrics_text),
            "pods.txt": Part(lambda: self._kubectl("get", "pods", "-o", "wide")),
            "engine.log": Part(self._logs, log=True),
            **evidence.of_the_host(),
        }
        return evidence.keep(self.deployment, about, made)

    def _metrics_text(self) -> str:
        url = self._url()
        return self._in_pod() if url is None else evidence.of_metrics(url)

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
        held, who = host_lock.held()
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


def run() -> None:
    """The verb: one look at the Deployment that the configuration names."""
    conf = config.load()
    watch.inspect_endpoint(conf, Pod(conf))
