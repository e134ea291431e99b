"""kube look: a Deployment, its pods and what they say, as the cluster has it now. Read-only."""

from __future__ import annotations

import calendar
import json
import os
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from node.core import files, mapped_files, proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.engine.config import http_url
from node.kube import kubectl
from node.rules.secret import masked_line

# A Deployment's JSON: where a container's variable stands, the patch that sets it, what differs.
#
# A variable stands in `env`, or in one `export NAME=VALUE` (or `NAME=VALUE command`) of a shell
# line
# in `args` or `command`. Anything else of these two is edited by its exact text, which stands
# there
# once. What cannot be told for sure is refused: a patch must change one value.

# what a shell takes as it is written
PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./-]*$")
# the server moves these itself with every change
_OWN = ("resourceVersion", "generation", "managedFields")
REVISION = "deployment.kubernetes.io/revision"
# stands where a variable's name does; no variable's name has a dot
REPLICAS = "spec.replicas"


class Place(NamedTuple):
    """Where a value stands: `env`, or an element of `args` or `command`; absent: value None."""

    kind: str
    at: int
    value: str | None
    text: str


def refused(message: str, remedy: str = "") -> NodeError:
    """Gives the error for a Deployment that is not touched."""
    return NodeError(message, "not_patched", remedy)


def container_of(deployment: Json, wanted: str | None, first: bool = False) -> Json:
    """Gives a container of the pod template (`first`: any will do).

    Raises NodeError that lists those that there are.
    """
    name = deployment["metadata"]["name"]
    boxes = deployment["spec"]["template"]["spec"]["containers"]
    names = [box["name"] for box in boxes]
    if wanted is None and (first or len(boxes) == 1):
        found: Json = boxes[0]
        return found
    if wanted not in names:
        what = "needs container" if wanted is None else f"has no container {wanted!r}"
        raise refused(f"Deployment {name} {what}; there are: {', '.join(names)}",
                      "--data container=NAME")  # fmt: skip
    return next(box for box in boxes if box["name"] == wanted)


def find_container(box: Json, name: str) -> Place:
    """Gives where a variable of a container stands. Raises NodeError when that is not one place."""
    rows = [row for row in box.get("env") or [] if row.get("name") == name]
    if len(rows) > 1:
        raise refused(f"{name} stands {len(rows)} times in env of container {box['name']}")
    if rows and "valueFrom" in rows[0]:
        raise refused(
            f"{name} of container {box['name']} comes from {_source(rows[0])}: set it there"
        )
    shell = [place for key in ("command", "args") for place in _in_shell(box, key, name)]
    count = len(shell) + len(rows)
    if count > 1:
        raise refused(
            f"{name} of container {box['name']} stands in {count} places (env and shell lines): "
            "the last one wins, and it is not clear which that is",
            "leave it in one place",
        )
    if shell:
        return shell[0]
    return Place("env", -1, rows[0].get("value", "") if rows else None, "")


def value_of(deployment: Json, box: Json, name: str) -> str | None:
    """Gives the value of a variable, or how many pods there are to be. Raises as `find`."""
    if name == REPLICAS:
        return str(deployment["spec"].get("replicas", 1))
    return find_container(box, name).value


def find_text(box: Json, old: str, new: str) -> Place:
    """Gives where one of two texts stands in `command` or `args`, and which (`value`). Raises
    NodeError unless one of them stands there exactly once, and the other not beside it.
    """
    rows = [Place(kind, at, None, str(text)) for kind in ("command", "args")
            for at, text in enumerate(box.get(kind) or [])]  # fmt: skip

    def there(text: str, other: str) -> bool:
        counts = [sum(_count(row.text, each) for row in rows) for each in (text, other)]
        return counts == [1, _count(text, other)]

    for text, other in ((old, new), (new, old)):
        if there(text, other):
            return next(row for row in rows if text in row.text)._replace(value=text)
    count = sum(_count(row.text, old) for row in rows)
    raise refused(
        f"{old!r} stands {count} times in command and args of container {box['name']}"
        + (f", and {new!r} beside it" if count == 1 else ""),
        "give a text that one element of them has once: kubectl get deployment -o yaml",
    )


def _count(text: str, part: str) -> int:
    """Gives how often a text stands in another one, also where it overlaps itself."""
    return sum(text.startswith(part, at) for at in range(len(text)))


def _edited(box: Json, edits: dict[str, str]) -> dict[str, list[str]]:
    """Gives `command` and `args` as they read once each text is replaced that is to be."""
    found: dict[str, list[str]] = {}
    for old, new in edits.items():
        place = find_text({**box, **found}, old, new)
        if place.value == old:
            found.setdefault(place.kind, list(box[place.kind]))
            found[place.kind][place.at] = place.text.replace(old, new)
    return found


def _source(row: Json) -> str:
    return ", ".join(row["valueFrom"]) or "elsewhere"


def _in_shell(box: Json, key: str, name: str) -> list[Place]:
    """Gives the assignments of a variable in a container's shell lines."""
    found: list[Place] = []
    for index, text in enumerate(box.get(key) or []):
        if not isinstance(text, str) or not re.search(rf"(?<![\w$]){re.escape(name)}=", text):
            continue
        values = [match.group(2) for match in _assignment(name).finditer(text)]
        if len(values) != 1 or len(re.findall(rf"(?<![\w$]){re.escape(name)}=", text)) != 1:
            raise refused(
                f"{key}[{index}] of container {box['name']} sets {name} in a way that is not read "
                "for sure (quoted, computed, or more than once): it is not touched",
                "write it as: export NAME=VALUE",
            )
        found.append(Place(key, index, values[0], text))
    return found


def _assignment(name: str) -> Any:
    """Gives the pattern of a plain assignment: at a word's start, its value of plain characters."""
    start = r"(^|[\s;&|({])"
    return re.compile(rf"{start}{re.escape(name)}=([A-Za-z0-9_@%+=:,./-]*)(?=$|[\s;&|)}}])")


def replaced(place: Place, name: str, value: str) -> str:
    """Gives the shell line with the one assignment's value replaced."""
    if not PLAIN.match(value):
        raise refused(f"{name}: {value[:60]!r} would need quotes in the shell line that sets it")
    return str(_assignment(name).sub(lambda m: f"{m.group(1)}{name}={value}", place.text, count=1))


def patch_of(
    deployment: Json, box: Json, values: dict[str, str | None], edits: dict[str, str]
) -> Json:
    """Gives the strategic merge patch that sets variables of one container (None: takes one away)
    and replaces texts of its command line.

    It names the container and the variable, so that sidecars and other variables stay, and the
    resourceVersion, so that the server refuses it when somebody else wrote meanwhile.
    """
    change: Json = {"name": box["name"], **_lines(box, values, edits)}
    spec: Json = {}
    for name in sorted(values):
        value = values[name]
        if name == REPLICAS:
            spec["replicas"] = int(value or 0)
            continue
        if find_container(box, name).kind == "env":
            row = {"name": name, "value": value}
            gone = {"name": name, "$patch": "delete"}
            change.setdefault("env", []).append(gone if value is None else row)
    if len(change) > 1:
        spec["template"] = {"spec": {"containers": [change]}}
    version = deployment["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": spec}


def _lines(box: Json, values: dict[str, str | None], edits: dict[str, str]) -> dict[str, list[str]]:
    """Gives `command` and `args` as they read once what stands there is set; none that is not.

    Raises NodeError for edits that their reverse would not take back byte for byte.
    """
    todo = {old: new for old, new in edits.items() if find_text(box, old, new).value == old}
    found = _edited(box, todo)
    back = _edited({**box, **found}, {new: old for old, new in todo.items()})
    if {**found, **back} != {kind: list(box[kind]) for kind in found}:
        raise refused(f"the edits of container {box['name']} overlap", "make one text of them")
    for name in sorted(values):
        value, now = values[name], {**box, **found}
        place = Place("env", -1, None, "") if name == REPLICAS else find_container(now, name)
        if place.kind == "env":
            continue
        if value is None:
            raise refused(f"{name} stands in a shell line: it cannot be taken away")
        found[place.kind] = list(now[place.kind])
        found[place.kind][place.at] = replaced(place, name, value)
    for old, new in edits.items():
        if find_text({**box, **found}, old, new).value != new:
            raise refused(f"{new!r} holds a variable that is set as well", "leave it out of one")
    return found


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Gives a document as path → scalar; rows of a list by their `name` where each has one."""
    if isinstance(value, dict):
        pairs = [(f"{path}.{key}" if path else str(key), part) for key, part in value.items()]
    elif isinstance(value, list):
        named = all(isinstance(row, dict) and "name" in row for row in value)
        unique = named and len({row["name"] for row in value}) == len(value)
        pairs = [(f"{path}[{row['name'] if unique else n}]", row) for n, row in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for inner, part in pairs:
        found.update(flat(part, inner))
    return found if pairs else {path: value}


def differences(before: Json, after: Json) -> list[Json]:
    """Gives what differs between two Deployments, the server's own counters and status aside."""
    sides = []
    for document in (before, after):
        meta = {k: v for k, v in document["metadata"].items() if k not in _OWN}
        notes = {k: v for k, v in (meta.get("annotations") or {}).items() if k != REVISION}
        sides.append(flat({"metadata": {**meta, "annotations": notes}, "spec": document["spec"]}))
    old, new = sides
    return [
        {"path": path, "before": old.get(path), "after": new.get(path)}
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path) or (path in old) != (path in new)
    ]


def expected_values(box: Json, values: dict[str, str | None], edits: dict[str, str]) -> list[str]:
    """Gives the paths that a patch of these values and texts may change: exactly these."""
    base = f"spec.template.spec.containers[{box['name']}]"
    paths: set[str] = set()
    for name in values:
        if name == REPLICAS:
            paths.add(name)
            continue
        if find_container(box, name).kind == "env":
            paths.update((f"{base}.env[{name}].value", f"{base}.env[{name}].name"))
    for kind, lines in _lines(box, values, edits).items():
        old, new = (flat(side, f"{base}.{kind}") for side in (box[kind], lines))
        paths.update(path for path in {*old, *new} if old.get(path) != new.get(path))
    return sorted(paths)


# Patch a Deployment: from a file that is in memory alone, rehearsed by the server first.

PATCH_S = 30


def send_patch(client: kubectl.Client, space: str, name: str, patch: Json, dry: bool) -> Json:
    """Send a patch; gives the Deployment that the server answers with.

    Raises NodeError: `conflict` when somebody else wrote meanwhile, `forbidden`, `not_patched`.
    """
    fd = os.memfd_create("patch", 0)
    try:
        os.write(fd, json.dumps(patch).encode())
        words = ["patch", "deployment", name, f"--namespace={space}", "--type=strategic",
                 f"--patch-file=/proc/{os.getpid()}/fd/{fd}"]  # fmt: skip
        try:
            found: Json = client.json([*words, *(["--dry-run=server"] if dry else [])], PATCH_S)
        except CannotRead as error:
            raise _explained(str(error), name) from None
        return found
    finally:
        os.close(fd)


def _explained(said: str, name: str) -> NodeError:
    """Gives kubectl's words as an error that a person can act on."""
    low = said.lower()
    if "conflict" in low or "object has been modified" in low:
        return NodeError(
            f"Deployment {name} was changed by somebody else meanwhile: {said}",
            "conflict",
            "look at it (kubectl get deployment), then run again",
        )
    if "forbidden" in low:
        return NodeError(
            f"this kubectl may not patch Deployment {name}: {said}",
            "forbidden",
            "use an account whose role has the verb patch on deployments.apps (kubeconfig)",
        )
    return NodeError(said, "not_patched", "kubectl describe deployment says more")


def rehearse_patch(
    client: kubectl.Client,
    space: str,
    deployment: Json,
    box: Json,
    values: dict[str, str | None],
    edits: dict[str, str],
) -> list[Json]:
    """Gives what the server says that a patch of these changes; nothing is changed.

    Raises NodeError when it would change anything else.
    """
    wanted = patch_of(deployment, box, values, edits)
    after = send_patch(client, space, deployment["metadata"]["name"], wanted, dry=True)
    found = differences(deployment, after)
    allowed = expected_values(box, values, edits)
    strange = [row["path"] for row in found if row["path"] not in allowed]
    if strange:
        raise NodeError(
            f"the server would change more than {', '.join(sorted({**values, **edits}))}: "
            f"{', '.join(strange)}",
            "not_patched",
            "an admission webhook changes it too: kubectl get mutatingwebhookconfigurations",
        )
    return found


# /etc/rigbook/limit.json: what gpu_limit set in a Deployment, which its guard compares.

PATH = "/etc/rigbook/limit.json"
FORMAT = 1
_LIMIT_STATE_KEYS = (
    "format",
    "rig",
    "node",
    "kubectl",
    "kubeconfig",
    "namespace",
    "deployment",
    "container",
    "set",
    "webhook",
    "webhook_file",
)
# 0.2.0 had none
_EDIT = "edit"
_REMEDY = "run deploys/gpu_limit.py without guard=true: it takes the file away; then with it"


class LimitState(NamedTuple):
    """A container of a Deployment, the values that were set there, by name, and the texts of its
    command line, each by the one before it. The webhook is watch's kind.
    """

    rig: str
    node: str
    kubectl: str
    kubeconfig: str | None
    namespace: str
    deployment: str
    container: str
    values: dict[str, str | None]
    edits: dict[str, str]
    webhook: str | None
    webhook_file: str | None


def path() -> str:
    """Gives the file's path; RIGBOOK_LIMIT names another one (tests)."""
    return os.environ.get("RIGBOOK_LIMIT") or PATH


def parse(value: Any) -> LimitState:
    """Gives the state of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", (*_LIMIT_STATE_KEYS, _EDIT), _LIMIT_STATE_KEYS)
    files.format_is(body, FORMAT)
    config, url, file = body["kubeconfig"], body["webhook"], body["webhook_file"]
    values = kubectl.values_of(body["set"], "set")
    edits = kubectl.edits_of(body.get(_EDIT, {}), _EDIT)
    if not values and not edits:
        raise validate.bad("set and edit are empty")
    return LimitState(
        validate.text(body["rig"], "rig", 200),
        validate.text(body["node"], "node", 200),
        validate.choice(body["kubectl"], "kubectl", kubectl.CLIENTS),
        None if config is None else validate.path(config, "kubeconfig"),
        kubectl.kube_name(body["namespace"], "namespace"),
        kubectl.kube_name(body["deployment"], "deployment"),
        kubectl.kube_name(body["container"], "container"),
        values,
        edits,
        None if url is None else http_url(url, "webhook"),
        None if file is None else validate.path(file, "webhook_file"),
    )


def read_limit() -> LimitState | None:
    """Gives the state, or None where nothing is guarded. Raises NodeError (`limit_file`)."""
    if not os.path.lexists(path()):
        return None
    return files.read_settings(path(), parse, "limit_file", _REMEDY)


def differing_limit(known: LimitState, deployment: Json) -> list[str]:
    """Gives a line for each value of the template that is not as it was set."""
    try:
        box = container_of(deployment, known.container)
    except NodeError as error:
        return [str(error)]
    found = []
    for name, value in known.values.items():
        try:
            now = find_container(box, name).value
        except NodeError as error:
            found.append(str(error))
            continue
        if now != value:
            said = "not set" if now is None else f"{now!r}"
            found.append(f"{name} is {said}, it was set to {value!r}")
    for old, new in known.edits.items():
        try:
            if find_text(box, old, new).value != new:
                found.append(f"{old!r} stands there again, it was edited to {new!r}")
        except NodeError as error:
            found.append(str(error))
    return found


def describe_limit(deployment: Json, space: str) -> Json | None:
    """Gives what is guarded in this Deployment and what differs (not the webhook's URL); None
    where nothing is, `unreadable` where the file cannot be read.
    """
    try:
        known = read_limit()
    except NodeError as error:
        return {"unreadable": str(error)}
    if known is None or (known.namespace, known.deployment) != (
        space, deployment["metadata"]["name"],
    ):  # fmt: skip
        return None
    return {"container": known.container, "values": known.values, "edits": known.edits,
            "webhook": known.webhook is not None, "webhook_file": known.webhook_file,
            "differs": differing_limit(known, deployment)}  # fmt: skip


TAIL = 200
# the wait ends at once with these: they do not mend themselves in time
_STUCK = ("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
          "CreateContainerConfigError", "CreateContainerError", "RunContainerError")  # fmt: skip
_KEYS = (
    "kubectl",
    "kubeconfig",
    "namespace",
    "deployment",
    "container",
    "variables",
    "edit",
    "set",
    "logs",
)


def inspect_deployment(request: Any) -> Json:
    """Gives the Deployment, its rollout, pods, newest event, log lines, and variables' values.

    `variables`: whose places are told, in the template and in the running processes. `edit`: of
    each pair of texts the place of the one that stands, by the old one. `set`: what a patch of
    these and of the edits would change, by the server's own dry run. `logs` false: no log is read.
    """
    body = validate.keys(request, "request", _KEYS, ("kubectl", "namespace", "deployment"))
    client = kubectl.client(body["kubectl"], body.get("kubeconfig"))
    space = kubectl.kube_name(body["namespace"], "namespace")
    wanted = body.get("container")
    box_name = None if wanted is None else kubectl.kube_name(wanted, "container")
    rows = validate.array(body.get("variables") or [], "variables", 50)
    asked = [kubectl.variable_name(row, f"variables[{n}]") for n, row in enumerate(rows)]
    edits = kubectl.edits_of(body.get("edit") or {}, "edit")
    deployment = get(client, space, kubectl.kube_name(body["deployment"], "deployment"))
    box = container_of(deployment, box_name)
    found = pods(client, space, deployment)
    logs = validate.boolean(body.get("logs", True), "logs")
    answer: Json = {
        "name": deployment["metadata"]["name"],
        "uid": deployment["metadata"]["uid"],
        "resource_version": deployment["metadata"]["resourceVersion"],
        "container": box["name"],
        "containers": [b["name"] for b in deployment["spec"]["template"]["spec"]["containers"]],
        "rollout": rollout(deployment),
        "variables": {
            **{key: place_of(partial(find_container, box, key)) for key in asked},
            **{old: place_of(partial(find_text, box, old, new)) for old, new in edits.items()},
        },
        "pods": [describe_pod(client, space, pod, box["name"], asked, logs) for pod in found],
        "event": event(client, space, [pod["metadata"]["name"] for pod in found]),
        "changes": None,
        "guard": describe_limit(deployment, space),
    }
    if body.get("set") is not None:
        values = kubectl.values_of(body["set"], "set")
        answer["changes"] = rehearse_patch(client, space, deployment, box, values, edits)
    return answer


def get(client: kubectl.Client, space: str, deployment: str) -> Json:
    """Gives the Deployment. Raises NodeError with kubectl's own words."""
    try:
        found: Json = client.json(["get", "deployment", deployment, f"--namespace={space}"])
    except CannotRead as error:
        gone = "NotFound" in str(error)
        raise NodeError(
            str(error), "no_deployment" if gone else "no_cluster",
            "see: kubectl get deployments -A" if gone else "see: kubectl cluster-info",
        ) from None  # fmt: skip
    return found


def place_of(find: Callable[[], Place]) -> Json:
    """Gives where a variable or a text stands and its value; or why that cannot be told."""
    try:
        place = find()
    except NodeError as error:
        return {"kind": "unclear", "index": -1, "value": None, "why": str(error)}
    return {"kind": place.kind, "index": place.at, "value": place.value, "why": None}


def rollout(deployment: Json) -> Json:
    """Gives what `kubectl rollout status` looks at: done, failed, and the numbers in words."""
    meta, spec, now = deployment["metadata"], deployment["spec"], deployment.get("status") or {}
    wanted = spec.get("replicas", 1)
    updated, total = now.get("updatedReplicas", 0), now.get("replicas", 0)
    ready = now.get("availableReplicas", 0)
    seen = now.get("observedGeneration", 0) >= meta["generation"]
    rows = {row["type"]: row for row in now.get("conditions") or []}
    late = (rows.get("Progressing") or {}).get("reason") == "ProgressDeadlineExceeded"
    done = seen and updated >= wanted and total <= updated and ready >= updated
    words = f"{updated} of {wanted} updated, {ready} available, {total} in all"
    return {"done": done, "failed": seen and late and not done, "words": words, "wanted": wanted,
            "generation": meta["generation"]}  # fmt: skip


def pods(client: kubectl.Client, space: str, deployment: Json) -> list[Json]:
    """Gives the Deployment's pods, newest first: those of its own ReplicaSets, by their owner's
    uid. Labels are anybody's; they only spare the server the other pods.
    """
    labels = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    more = [f"--namespace={space}", *([f"--selector={selector}"] if selector else [])]
    owners = {deployment["metadata"]["uid"]}
    for kind in ("replicasets", "pods"):
        items = [row for row in client.json(["get", kind, *more])["items"]
                 if any(ref.get("controller") and ref.get("uid") in owners
                        for ref in row["metadata"].get("ownerReferences") or [])]  # fmt: skip
        owners = {row["metadata"].get("uid") for row in items}
    return sorted(items, key=lambda p: str(p["metadata"]["creationTimestamp"]), reverse=True)[:20]


def describe_pod(
    client: kubectl.Client, space: str, pod: Json, box: str, names: list[str], logs: bool
) -> Json:
    """Gives one pod: phase, readiness, why it waits, restarts, its last log lines."""
    status = pod.get("status") or {}
    rows = {row["name"]: row for row in status.get("containerStatuses") or []}
    mine = rows.get(box) or {}
    waiting = ((mine.get("state") or {}).get("waiting")) or {}
    restarts = int(mine.get("restartCount", 0))
    stuck = waiting.get("reason") if waiting.get("reason") in _STUCK else None
    pod_name = pod["metadata"]["name"]
    uid = pod["metadata"]["uid"]
    return {
        "name": pod_name,
        "uid": uid,
        "hash": str((pod["metadata"].get("labels") or {}).get("pod-template-hash", "")),
        "phase": str(status.get("phase", "")),
        "leaving": "deletionTimestamp" in pod["metadata"],
        "ready": sum(1 for row in rows.values() if row.get("ready")),
        "containers": len((pod.get("spec") or {}).get("containers") or []),
        "restarts": restarts,
        "waiting": str(waiting.get("reason") or "") or None,
        "stuck": stuck,
        "age_s": age(status.get("startTime")),
        "log": log_of(client, space, pod_name, box, bool(stuck and restarts)) if logs else [],
        "live": live(uid, names),
    }


def age(stamp: Any) -> float | None:
    """Gives how many seconds ago a pod was taken by its node; None for one that was not yet."""
    try:
        return time.time() - calendar.timegm(time.strptime(str(stamp), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None


def log_of(client: kubectl.Client, space: str, pod: str, box: str, previous: bool) -> list[str]:
    """Gives a container's last log lines (of its last life where it is in a crash loop)."""
    words = ["logs", pod, f"--namespace={space}", f"--container={box}", f"--tail={TAIL}"]
    try:
        done = client.run([*words, "--previous"] if previous else words, 8)
    except CannotRead:
        return []
    return [masked_line(line)[:500] for line in done.out.splitlines()] if done.rc == 0 else []


def event(client: kubectl.Client, space: str, names: list[str]) -> str | None:
    """Gives the newest event of the pods, in a line; None where there is none to be read."""
    try:
        items = client.json(["get", "events", f"--namespace={space}"])["items"]
    except CannotRead:
        return None
    rows: list[tuple[str, str]] = []
    for item in items:
        about = (item.get("involvedObject") or {}).get("name")
        if about in names:
            when = item.get("lastTimestamp") or item.get("eventTime") or ""
            text = " ".join(str(item.get("message", "")).split())[:200]
            rows.append((str(when), f"{item.get('reason', '')}: {text}"))
    return max(rows)[1] if rows else None


def live(uid: str, names: list[str]) -> Json:
    """Gives what the pod's processes on this host really have of the variables.

    The plugin may inject the same variable: only the process tells which one won.
    """
    found: list[Json] = []
    if not names:
        return {"processes": 0, "values": {}}
    for pid in proc.pids():
        if mapped_files.pod_of(proc.cgroup(pid)) == uid and os.path.exists(f"/proc/{pid}/exe"):
            environ = proc.environ(pid)
            found.append({key: environ.get(key) for key in names})
    # a pause container has none of them
    values = {key: sorted({row[key] for row in found if row[key] is not None}) for key in names}
    return {"processes": len(found), "values": values}
