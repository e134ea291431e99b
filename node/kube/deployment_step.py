"""The `kube` step of a change: variables of one container of a Deployment, texts of its command
line, or how many pods it has, set and set back.

Undo sets the recorded values back by the same kind of patch. It does not use `rollout undo`, which
needs the former ReplicaSet and would take other people's later changes with it.
"""

from __future__ import annotations

import calendar
import os
import stat
import struct
import time
from typing import Any, NamedTuple

from node.change import journal, kinds, transaction
from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import PATH, POST, PRE, Irreversible, Kind, Seen, Steps, differing
from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.kube import inspect, kubectl

# HAMi's shared cache of a container: where it lies on the host, and its removal once unused.
#
# HAMi-core maps one file for all processes of a container. The first writes its memory limit into
# it;
# later ones find it and keep that limit (try_create_shrreg in multiprocess_memory_limit.c), so a
# file
# that outlives its pod holds a former limit in force.

# multiprocess_memory_limit.h: the name of the variable, its default, and the file's first number
VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
DEFAULT = "/tmp/cudevshr.cache"
MAGIC = 19920718
POLL_S = 0.1
GRACE_S = 10.0
MAX_WAIT_S = 60.0


class Place(NamedTuple):
    """A cache as the container names it; `host` is its path on the host, or None and `why`."""

    inside: str
    host: str | None
    why: str


def cache_place(template: Json, box: Json) -> Place:
    """Gives where a container of a pod template has its cache; of a hostPath alone it stays."""
    try:
        inside = inspect.find_container(box, VARIABLE).value or DEFAULT
    except NodeError as error:
        return Place(DEFAULT, None, str(error))
    mounts = [m for m in box.get("volumeMounts") or [] if _under(inside, m["mountPath"])]
    if not mounts:
        return Place(inside, None, "it goes with the container")
    mount = max(mounts, key=lambda m: len(m["mountPath"]))
    volumes: dict[str, Json] = {v["name"]: v for v in template["spec"].get("volumes") or []}
    volume = volumes.get(mount["name"]) or {}
    if "emptyDir" in volume:
        return Place(inside, None, "it goes with the pod")
    if "hostPath" not in volume or mount.get("subPathExpr"):
        kind = next((key for key in volume if key != "name"), "an unknown volume")
        return Place(inside, None, f"it lies in {kind} {mount['name']}, which is not looked into")
    parts = [volume["hostPath"]["path"], mount.get("subPath") or "",
             os.path.relpath(inside, mount["mountPath"])]  # fmt: skip
    host = os.path.normpath(os.path.join(parts[0], parts[1].lstrip("/"), parts[2]))
    return Place(inside, host, f"it is {host} of the host")


def _under(path: str, folder: str) -> bool:
    return os.path.normpath(path).startswith(folder.rstrip("/") + "/")


def holders(device: int, inode: int) -> set[int]:
    """Gives the pids of the processes that map the file or have it open."""
    column = b"%02x:%02x" % (os.major(device), os.minor(device))
    found: set[int] = set()
    for pid in proc.pids():
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                rows = [line.split(None, 5) for line in file.read().splitlines()]
            if any(len(r) > 4 and r[3] == column and int(r[4]) == inode for r in rows):
                found.add(pid)
            for number in os.listdir(f"/proc/{pid}/fd"):
                info = os.stat(f"/proc/{pid}/fd/{number}")
                if (info.st_dev, info.st_ino) == (device, inode):
                    found.add(pid)
        except OSError:
            continue  # it has ended, or closed the file
    return found


def clear_cache(deployment: Json, box: Json) -> str:
    """Remove the container's cache once nobody has it any more; gives what was done in words.

    Waits for those that have it now (the pod that goes), as long as the pod may take for its end.
    A newcomer is the pod that comes: the file is in use again and stays.
    """
    template = deployment["spec"]["template"]
    found = cache_place(template, box)
    if found.host is None:
        return f"shared cache {found.inside}: {found.why}"
    grace = template["spec"].get("terminationGracePeriodSeconds")
    wait = min(MAX_WAIT_S, float(30 if grace is None else grace) + GRACE_S)
    try:
        return _clear(found.host, time.monotonic() + wait)
    except FileNotFoundError:
        return f"there is no shared cache {found.host}"
    except OSError as error:
        return f"shared cache {found.host} stays: {io_reason(error)}"


def _clear(path: str, deadline: float) -> str:
    first: set[int] | None = None
    folder = os.open(os.path.dirname(path), os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    name = os.path.basename(path)
    try:
        while True:
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return f"there is no shared cache {path}"
            if not stat.S_ISREG(info.st_mode) or not _is_cache(name, folder):
                return f"{path} is no shared cache of HAMi: it is left"
            now = holders(info.st_dev, info.st_ino)
            if not now:
                os.unlink(name, dir_fd=folder)
                return f"the former shared cache {path} was removed"
            first = now if first is None else first
            if now - first or time.monotonic() > deadline:
                pids = ", ".join(map(str, sorted(now)))
                return (f"shared cache {path} stays, with the former limit: pid {pids} has it; "
                        "remove it while no pod of the Deployment runs")  # fmt: skip
            time.sleep(POLL_S)
    finally:
        os.close(folder)


def _is_cache(name: str, folder: int) -> bool:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        raw = os.read(fd, 4)
        return len(raw) == 4 and struct.unpack("<i", raw)[0] == MAGIC
    finally:
        os.close(fd)


MAX_REPLICAS = 1000
TRIES = 3


def _wanted(step: Json, where: str) -> dict[str, str | None]:
    """Gives what the step sets by name: variables, or how many pods there are to be."""
    if "replicas" not in step:
        return kubectl.values_of(step.get("set", {}), f"{where}.set")
    count = validate.number(step["replicas"], f"{where}.replicas", 0, MAX_REPLICAS)
    return {inspect.REPLICAS: str(int(count))}


def _client(row: Json) -> kubectl.Client:
    """The client of a step; by the copy that a refusal asks for, where another user may change the
    file that the step was done with. The Deployment's uid says that it is the same cluster.
    """
    try:
        return kubectl.client(row["kubectl"], row["kubeconfig"])
    except NodeError as error:
        if error.code != "not_roots" or not os.path.isfile(kubectl.COPY):
            raise
        return kubectl.client(row["kubectl"], kubectl.COPY)


def _read(row: Json, client: kubectl.Client) -> Any:
    """Gives the Deployment and its container as they are now. Raises NodeError."""
    deployment = inspect.get(client, row["namespace"], row["deployment"])
    if deployment["metadata"]["uid"] != row["uid"]:
        raise NodeError(
            f"Deployment {row['deployment']} was made anew since it was looked at", "made_anew",
            "look at it, then run again",
        )  # fmt: skip
    return deployment, inspect.container_of(deployment, row["container"])


def _values(deployment: Json, box: Json, values: Any, edits: Any) -> dict[str, str | None]:
    """Gives each variable's value by its name, and by the old text of an edit the one that stands.

    `values` may have the edits' old texts as well, which is what a row's `pre` and `post` do.
    """
    found = {name: inspect.value_of(deployment, box, name)
             for name in values if name not in edits}  # fmt: skip
    for old, new in edits.items():
        try:
            found[old] = inspect.find_text(box, old, new).value
        except NodeError:
            found[old] = None
    return found


def _now(row: Json, client: kubectl.Client) -> tuple[dict[str, str | None], Json, Json]:
    """Gives the values of a row as they are now, the Deployment and its container."""
    deployment, box = _read(row, client)
    return _values(deployment, box, row["pre"], row.get("edit") or {}), deployment, box


def _look_again(entry: Json, client: kubectl.Client) -> Json | None:
    """Gives the values as they are now, or None when that cannot be told."""
    try:
        return _now(entry, client)[0]
    except (NodeError, CannotRead):
        return None


def _gone(error: NodeError) -> bool:
    """Gives True when the Deployment that was patched is no more (deleted, or made anew)."""
    return error.code in ("no_deployment", "made_anew")


def _edited(entry: Json) -> bool:
    """Gives True when the values are neither as the step found them nor as it left them."""
    try:
        now, _, _ = _now(entry, _client(entry))
    except NodeError as error:
        if _gone(error):
            return False
        raise
    return any(now[key] not in (entry["pre"][key], entry["post"][key]) for key in now)


class DeploymentKind(Kind):
    """One container of a Deployment; `pre` and `post` are its values by name, and the texts that
    stand by the old text of each `edit`.
    """

    keys = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "set", "edit",
            "replicas", "uid", "resource_version", "clear_cache")  # fmt: skip
    required = ("kubectl", "namespace", "deployment", "container", "uid", "resource_version")
    phase = PATH
    # the pods start anew already
    taken_back = False
    told = ("cache",)

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked. Raises NodeError (bad_request)."""
        kubeconfig = step.get("kubeconfig")
        if ("replicas" in step) == bool(step.get("set") or step.get("edit")):
            raise validate.bad(f"{where}: give 'replicas', or 'set' and 'edit'")
        space = kubectl.kube_name(step["namespace"], f"{where}.namespace")
        name = kubectl.kube_name(step["deployment"], f"{where}.deployment")
        box = kubectl.kube_name(step["container"], f"{where}.container")
        return {
            "op": self.op,
            # what rignode undo --overwrite names; no file lies there
            "path": f"/kubernetes/{space}/deployments/{name}/{box}",
            "kubectl": validate.choice(step["kubectl"], f"{where}.kubectl", kubectl.CLIENTS),
            "kubeconfig": None
            if kubeconfig is None
            else validate.path(kubeconfig, f"{where}.kubeconfig"),
            "namespace": space,
            "deployment": name,
            "container": box,
            "set": _wanted(step, where),
            "edit": kubectl.edits_of(step.get("edit", {}), f"{where}.edit"),
            "clear_cache": validate.boolean(step.get("clear_cache", False), f"{where}.clear_cache"),
            "uid": validate.text(step["uid"], f"{where}.uid", 100),
            "resource_version": validate.text(
                step["resource_version"], f"{where}.resource_version", 100
            ),
        }

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; the server rehearses it."""
        client = _client(step)
        deployment, box = _read(step, client)
        space = step["namespace"]
        changed = inspect.rehearse_patch(client, space, deployment, box, step["set"], step["edit"])
        return bool(changed), "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Patch the Deployment. When the server refuses, nothing was changed: the record goes."""
        client = _client(step)
        deployment, box = _read(step, client)
        before = _values(deployment, box, step["set"], step["edit"])
        after = {**step["set"], **step["edit"]}
        if before == after:
            return False, "as wanted"
        if deployment["metadata"]["resourceVersion"] != step["resource_version"]:
            now = deployment["metadata"]["resourceVersion"]
            raise NodeError(
                f"Deployment {step['deployment']} was changed by somebody else meanwhile: its "
                f"resourceVersion is {now}, not {step['resource_version']}",
                "conflict",
                "look at it (kubectl get deployment), then run again",
            )
        inspect.rehearse_patch(
            client, step["namespace"], deployment, box, step["set"], step["edit"]
        )
        about = {key: step[key] for key in ("path", "kubectl", "kubeconfig", "namespace",
                                            "deployment", "container", "uid", "edit")}  # fmt: skip
        entry = self.record(steps, **about, pre=before, post=after)
        try:
            patch = inspect.patch_of(deployment, box, step["set"], step["edit"])
            inspect.send_patch(client, step["namespace"], step["deployment"], patch, dry=False)
        except NodeError:
            if _look_again(entry, client) == entry["pre"]:
                steps.rows.remove(entry)
                steps.write()
            raise
        entry["state"] = "done"
        if step["clear_cache"]:
            # named before: an undo after a kill in here clears it too
            entry["cache"] = "not yet looked for"
            steps.write()
            entry["cache"] = clear_cache(deployment, box)
        steps.write()
        return True, "changed"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out what became of a patch by what the cluster has now."""
        now = _look_again(entry, _client(entry))
        if now == entry["post"]:
            return DONE
        return UNDONE if now == entry["pre"] else UNKNOWN

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives True when the values are neither as the step found them nor as it left them."""
        return entry["path"] not in seen.overwrite and _edited(entry)

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Set the former values back and read them again."""
        client, edits = _client(entry), entry.get("edit") or {}
        for attempt in range(TRIES):
            try:
                now, deployment, box = _now(entry, client)
            except NodeError as error:
                if _gone(error):
                    return f"nothing to set back: {error}"
                raise
            if now == entry["pre"]:
                return "restored" if attempt else "was as before"
            if _edited(entry) and not overwrite:
                raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
            todo = {key: value for key, value in entry["pre"].items() if now[key] != value}
            back = {key: value for key, value in todo.items() if key not in edits}
            texts = {edits[old]: old for old in todo if old in edits}
            try:
                patch = inspect.patch_of(deployment, box, back, texts)
                inspect.send_patch(
                    client, entry["namespace"], entry["deployment"], patch, dry=False
                )
            except NodeError as error:
                # the controller writes the status all the time: read again, patch again
                if error.code != "conflict" or attempt == TRIES - 1:
                    raise
                continue
            now, deployment, box = _now(entry, client)
            if now == entry["pre"]:
                told = [clear_cache(deployment, box)] if "cache" in entry else []
                return "; ".join(["restored", *told])
        raise NodeError(f"{entry['path']} does not keep the former value", "not_patched")

    def unknown(self, entry: Json) -> str | None:
        """Gives the flags that 0.2.0, whose rows have no edits, set by their name."""
        pre = entry.get("pre")
        if "edit" in entry or not isinstance(pre, dict):
            return None
        found = ", ".join(name for name in pre if name.startswith("--"))
        return f"sets {found} by its name" if found else None

    def about(self, entry: Json) -> str:
        """Gives the container of the Deployment."""
        return str(entry["path"])

    def folded(self, rows: list[Json], side: str) -> Json:
        """Gives each value by name as the first step that set it found it, or the last left it."""
        values: Json = {}
        edits: Json = {}
        for row in rows if side == POST else reversed(rows):
            values.update(row[side])
            edits.update(row.get("edit") or {})
        return {**rows[0], side: values, "edit": edits}

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the values that are not as recorded; none of a Deployment that is gone."""
        try:
            deployment, box = _read(entry, _client(entry))
        except NodeError as error:
            if _gone(error):
                return []
            raise
        now = _values(deployment, box, entry[side], entry.get("edit") or {})
        about = entry["deployment"]
        return [line for key in now
                for line in differing(f"{about} {key}", now[key], entry[side][key])]  # fmt: skip


# The step of a rollout that was begun anew: it cannot be undone, and may leave pods that last.


def _started(pod: Json, since_unix_s: float) -> bool:
    """Gives True for a pod that runs and was made since then."""
    made = time.strptime(pod["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    runs = (pod.get("status") or {}).get("phase") == "Running"
    return runs and calendar.timegm(made) >= int(since_unix_s)


class RestartKind(Irreversible):
    """A restart alone leaves the same pods, anew. After other steps of its change (`lasts`) they
    run with what these gave them, also once that was taken back.
    """

    passing = False

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives a line while pods of this rollout run; none once there was another one."""
        if side != PRE or not entry.get("lasts", True):
            return []
        space, name = entry.get("namespace"), entry.get("deployment")
        line = (f"restart: the pods of Deployment {space}/{name} keep what they started with: "
                f"kubectl rollout restart deployment/{name} --namespace={space}")  # fmt: skip
        if "generation" not in entry:  # an older journal
            return [line]
        client = kubectl.client(entry["kubectl"], entry["kubeconfig"])
        try:
            deployment = inspect.get(client, entry["namespace"], entry["deployment"])
        except NodeError as error:
            if error.code == "no_deployment":
                return []
            raise
        if int(deployment["metadata"]["generation"]) != entry["generation"]:
            return []
        pods = inspect.pods(client, entry["namespace"], deployment)
        return [line] if any(_started(pod, entry["at_unix_s"]) for pod in pods) else []


# kube restart: begin a rollout of a Deployment whose pods are to start anew, for good.

RESTART_S = 30
_KEYS = ("change", "kubectl", "kubeconfig", "namespace", "deployment", "pod")


def restart_deployment(request: Any) -> Json:
    """Begin the rollout while `pod` (its uid) is of the Deployment; gives what was done.

    A pod that is gone, or belongs to another Deployment, is left: `restarted` is false.
    """
    body = validate.keys(request, "request", _KEYS, ("change", *_KEYS[1:2], *_KEYS[3:]))
    header = journal.parse_change(body["change"])
    space = kubectl.kube_name(body["namespace"], "namespace")
    name = kubectl.kube_name(body["deployment"], "deployment")
    pod = validate.text(body["pod"], "pod", 100)
    client = kubectl.client(body["kubectl"], body.get("kubeconfig"))
    with transaction.opened(header, "kube restart") as log:
        deployment = inspect.get(client, space, name)
        before = int(deployment["metadata"]["generation"])
        box = inspect.container_of(deployment, None, first=True)["name"]
        told = {"generation": before, "container": box}
        found = [row["metadata"]["uid"] for row in inspect.pods(client, space, deployment)]
        if pod not in found:
            return {"restarted": False, **told, "change": log.change_id}
        # what restart_step.py looks at: the rollout counts the generation up by one
        lasts = any(not kinds.of(row).irreversible for row in log.rows)
        entry = log.begin("restart", namespace=space, deployment=name, pod=pod, lasts=lasts,
                          kubectl=body["kubectl"], kubeconfig=body.get("kubeconfig"),
                          generation=before + 1, at_unix_s=time.time())  # fmt: skip
        try:
            done = client.run(
                ["rollout", "restart", f"deployment/{name}", f"--namespace={space}"], RESTART_S
            )
        except CannotRead as error:
            raise NodeError(str(error), "no_cluster", "see: kubectl cluster-info") from None
        if done.rc != 0:
            log.rows.remove(entry)
            log.write()
            raise NodeError(f"kubectl rollout restart: {done.last_line()[:300]}", "not_patched")
        entry["state"] = "done"
        log.write()
    return {"restarted": True, **told, "change": header["id"]}
