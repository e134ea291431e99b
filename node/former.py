"""Who runs vLLM here otherwise: engines, containers, pods, supervisors."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from node import units
from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api
from node.kube import kubectl
from node.processes import is_engine
from node.rules import secret as rules_secret
from node.rules.secret import MASK, SECRET_FLAG, has_credentials
from node.rules.text import LOGIN_UNIT

# What runs a vLLM on this host by other means than rigbook, and what would start it again.

# The `vllm serve` processes that rigbook did not start, with all that their start was made of.

# our unit and our container have this in front; node/reap.py has their names
OURS = "rigbook-"
# a unit of somebody's own manager: user@UID.service holds it
USERS = re.compile(r"/user@(\d+)\.service/(?:.*/)?([^/]+\.service)(?:/|$)")
_ENTRY = re.compile(r"(?:^|/)vllm$")
_SERVER = re.compile(r"vllm[./]entrypoints[./]openai[./]api_server(?:\.py)?$")
DEFAULT_PORT = 8000


def serves(argv: Sequence[str]) -> bool:
    """Gives True for `vllm serve`, `python -m vllm… serve` and the api_server's own module.

    A worker's title, `vllm bench` and `vllm chat` are none.
    """
    if not is_engine(argv) or argv[0].startswith("VLLM::"):
        return False
    for n, arg in enumerate(argv[:8]):
        if _SERVER.search(arg):
            return True
        if _ENTRY.search(arg) or arg in ("vllm", "vllm.entrypoints.cli.main"):
            return argv[n + 1 : n + 2] == ["serve"] or argv[n + 1 : n + 2] == ("serve",)
    return False


def option(argv: Sequence[str], *names: str) -> str | None:
    """Gives the last value of an option, as `--name value` or `--name=value`; None without one.

    vLLM takes `_` for `-` in an option's name.
    """
    found = None
    for n, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name.startswith("-") and name.replace("_", "-") in names:
            found = value if equals else next(iter(argv[n + 1 : n + 2]), None)
    return found


def _number(argv: Sequence[str], default: int, *names: str) -> int:
    """Gives an option's number, or the default where there is none that can be read."""
    value = option(argv, *names)
    return int(value) if value is not None and value.isdigit() else default


def ancestors(pid: int) -> list[int]:
    """Gives the pids above a process, its parent first."""
    found: list[int] = []
    row = proc.stat(pid)
    while row is not None and row.ppid > 1 and row.ppid not in found:
        found.append(row.ppid)
        row = proc.stat(row.ppid)
    return found


def _venv(argv: Sequence[str], environ: dict[str, str]) -> str | None:
    """Gives the venv's folder that the interpreter or the script lies in, or None."""
    folders = [os.path.dirname(os.path.dirname(word)) for word in argv[:2] if "/bin/" in word]
    for folder in [*folders, environ.get("VIRTUAL_ENV", "")]:
        if folder.startswith("/") and os.path.exists(os.path.join(folder, "pyvenv.cfg")):
            return folder
    return None


def user_name(uid: int) -> str | None:
    """Gives the name of a user of this host, or None."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _cwd(pid: int) -> str | None:
    """Gives a process's folder as it sees it, or None."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def _masked(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Gives argv without the values of secrets, and the options that had some."""
    shown = [MASK if has_credentials(arg) else arg for arg in rules_secret.masked_argv(argv)]
    flags: dict[str, None] = {}
    for n, (arg, told) in enumerate(zip(argv, shown, strict=True)):
        if arg != told:
            back = [a for a in argv[: n + 1] if a.startswith("--")]
            flags[back[-1].partition("=")[0] if back else arg] = None
    return shown, [flag for flag in flags if SECRET_FLAG.match(flag) or flag.startswith("--")]


def _engine(pid: int, argv: Sequence[str]) -> Json | None:
    """Gives one engine, or None when it ended meanwhile, or is rigbook's own unit's."""
    before = proc.stat(pid)
    cgroup, environ, uid = proc.cgroup(pid), proc.environ(pid), proc.uid(pid)
    exe, cwd = proc.exe(pid), _cwd(pid)
    after = proc.stat(pid)
    if before is None or after is None or uid is None or before.start_ticks != after.start_ticks:
        return None
    unit = proc.unit_of(cgroup)
    if unit is not None and unit.startswith(OURS):
        return None
    if unit is not None and (LOGIN_UNIT.match(unit) or USERS.search(cgroup)):
        unit = None
    secret = sorted(name for name, value in environ.items() if rules_secret.is_secret(name, value))
    shown, flags = _masked(argv)
    inside = proc.container_of(cgroup)
    return {
        "pid": pid,
        "start_ticks": after.start_ticks,
        "argv": shown,
        "env": {name: MASK if name in secret else environ[name] for name in sorted(environ)},
        "secret_env": secret,
        "secret_flags": flags,
        "cwd": cwd,
        "uid": uid,
        "user": user_name(uid),
        "exe": exe,
        "unit": unit,
        # the container's id; node/former.py names it
        "container": inside,
        "inside_of": "host",
        "venv": None if inside else _venv(argv, environ),
        "port": _number(argv, DEFAULT_PORT, "--port"),
        "node_rank": _number(argv, 0, "--node-rank", "-r"),
        "is_head": "--headless" not in argv and _number(argv, 0, "--node-rank", "-r") == 0,
        "cgroup": cgroup,
    }


def former_engines() -> list[Json]:
    """Gives the engines, ascending by pid; the processes below one are its own workers."""
    found = {pid: argv for pid in proc.pids() if serves(argv := proc.argv(pid))}
    mains = [pid for pid in found if not set(ancestors(pid)) & set(found)]
    return [row for row in (_engine(pid, found[pid]) for pid in mains) if row is not None]


# The containers that hold an engine, or were made to, and how each was made.

MAX_CHANGED = 30
# main processes that only wait for `docker exec`; a shell or an init may start one of them
_WAITS = ("sleep", "tail", "pause", "cat", "earlyoom")
_SHELLS = ("bash", "sh", "tini", "docker-init", "dumb-init")
_WAITING = re.compile(r"\b(?:sleep|tail|pause|earlyoom)\b")
# what a running engine writes, and what docker itself puts there
_WRITTEN = ("/tmp", "/var", "/run", "/proc", "/sys", "/dev", "/root/.cache", "/root/.triton",
            "/root/.config", "/root/.nv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
            "/etc/mtab", "/root/.bash_history")  # fmt: skip
# keys of HostConfig that change what an engine may do and that a recipe has none for
_OPTIONS = {
    "CapAdd": "--cap-add", "CapDrop": "--cap-drop", "Devices": "--device",
    "SecurityOpt": "--security-opt", "Ulimits": "--ulimit", "ExtraHosts": "--add-host",
    "Dns": "--dns", "GroupAdd": "--group-add", "Memory": "--memory", "NanoCpus": "--cpus",
    "CpusetCpus": "--cpuset-cpus", "PidMode": "--pid", "Tmpfs": "--tmpfs", "PidsLimit":
    "--pids-limit", "OomScoreAdj": "--oom-score-adj", "Sysctls": "--sysctl",
}  # fmt: skip
_DEFAULT_SHM = 64 << 20


def environment(rows: Sequence[str] | None) -> dict[str, str]:
    """Gives NAME=VALUE rows as a map, sorted, with the values of secrets masked."""
    pairs = dict(row.partition("=")[::2] for row in rows or [])
    return {
        name: MASK if rules_secret.is_secret(name, pairs[name]) else pairs[name]
        for name in sorted(pairs)
    }


def waits(main: Sequence[str]) -> bool:
    """Gives True for a container whose main process only waits for `docker exec`."""
    text = " ".join(main)
    if not main or "vllm" in text:
        return False
    program = os.path.basename(main[0])
    shell = program in _SHELLS and (len(main) == 1 or _WAITING.search(text))
    return program in _WAITS or bool(shell)


def _words(value: Any) -> str:
    """Gives an option's value in words."""
    rows = value if isinstance(value, list) else [value]
    named = (row.get("PathOnHost") or row.get("Name") if isinstance(row, dict) else row
             for row in rows)  # fmt: skip
    return ",".join(str(row) for row in named)


def _options(config: Json, host: Json) -> list[str]:
    """Gives what a recipe has no key for, as options of `docker run`."""
    found = [f"{option}={_words(host[key])}" for key, option in _OPTIONS.items() if host.get(key)]
    if config.get("User"):
        found.append(f"--user={config['User']}")
    return found


def _gpus(host: Json) -> bool:
    """Gives True where docker was asked for GPUs (--gpus, deploy.resources, a CDI device)."""
    for row in host.get("DeviceRequests") or []:
        capabilities = [name for group in row.get("Capabilities") or [] for name in group]
        if "gpu" in capabilities or row.get("Driver") in ("nvidia", "cdi"):
            return True
    return False


def upper_folder(pid: int) -> str | None:
    """Gives the folder of a running container's own layer, None where its root is no overlay.

    Docker's GET /containers/ID/changes says the same, and compares the whole image for it.
    """
    for line in proc.read_text(f"/proc/{pid}/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        if place.split()[4:5] == ["/"] and source.startswith("overlay "):
            options = source.split()[2].split(",")
            return next((o.partition("=")[2] for o in options if o.startswith("upperdir=")), None)
    return None


def _changed(pid: int) -> list[str]:
    """Gives the files that were put into a container by hand (docker cp, a patch), at most 30.

    Raises CannotRead.
    """
    top = upper_folder(pid)
    if top is None or not os.path.isdir(top):
        raise CannotRead("its root is no overlay that can be read")
    found: list[str] = []
    for folder, folders, files in os.walk(top):
        inside = folder[len(top) :]
        folders[:] = [f for f in sorted(folders) if not _own(f"{inside}/{f}")]
        found += [f"{inside}/{f}" for f in sorted(files) if not _own(f"{inside}/{f}")]
        if len(found) >= MAX_CHANGED:
            break
    return found[:MAX_CHANGED]


def _own(path: str) -> bool:
    """Gives True for what an engine and docker write by themselves."""
    return path.endswith("/__pycache__") or any(
        path == known or path.startswith(f"{known}/") for known in _WRITTEN
    )


def detail(row: Json, image: Json | None, changed: list[str]) -> Json:
    """Gives a FormerContainer of GET /containers/ID/json and its image's GET /images/ID/json."""
    config, host = row["Config"], row["HostConfig"]
    made = api.container(row)
    own = (image or {}).get("Config") or {}
    shm = int(host.get("ShmSize") or 0)
    policy = host.get("RestartPolicy") or {}
    return {
        "id": made["id"],
        "name": made["name"],
        "image": made["image"],
        "image_id": made["image_id"],
        "digests": sorted((image or {}).get("RepoDigests") or []),
        "tags": sorted((image or {}).get("RepoTags") or []),
        "state": made["state"],
        "main": made["argv"],
        "env": environment(config.get("Env")),
        "image_env": environment(own.get("Env")),
        "mounts": made["mounts"],
        "restart_policy": str(policy.get("Name") or "no"),
        "auto_remove": bool(host.get("AutoRemove")),
        "network_mode": made["network_mode"],
        "ipc_mode": made["ipc_mode"],
        "shm_bytes": 0 if shm == _DEFAULT_SHM or made["ipc_mode"] == "host" else shm,
        "privileged": made["privileged"],
        "runtime": str(host.get("Runtime") or ""),
        "gpus": _gpus(host),
        "labels": made["labels"],
        "other_options": _options(config, host),
        "changed": changed,
    }


def _inspect(identifier: str, unread: list[str], brief: bool) -> Json | None:
    """Gives one container, or None when it went meanwhile."""
    row = api.get(f"/containers/{identifier}/json", absent_ok=True)
    if row is None:
        return None
    image = api.get(f"/images/{quote(str(row.get('Image')), safe=':')}/json", absent_ok=True)
    pid, changed = int((row.get("State") or {}).get("Pid") or 0), []
    try:
        changed = _changed(pid) if pid and not brief else []
    except CannotRead as error:
        unread.append(f"files put into container {row['Name'].lstrip('/')}: {error}")
    return {**detail(row, image, changed), "pid": pid}


def former_containers(
    holding: Collection[str], unread: list[str], brief: bool = False
) -> tuple[list[Json], set[str]]:
    """Gives the containers with one of these ids, and those with vLLM in name, image or command;
    and the ids of rigbook's own. What could not be read is added to `unread`. `brief`: without
    the files that were put into them.
    """
    ours: set[str] = set()
    if not os.path.exists(api.SOCKET):
        return [], ours
    try:
        listed = api.get("/containers/json?all=1")
        found = []
        for row in listed:
            name = str((row.get("Names") or [""])[0]).lstrip("/")
            told = " ".join((name, str(row.get("Image")), str(row.get("Command")))).lower()
            wanted = row["Id"] in holding or "vllm" in told
            if name.startswith(OURS):
                ours.add(str(row["Id"]))
            elif wanted:
                found.append(_inspect(str(row["Id"]), unread, brief))
    except CannotRead as error:
        unread.append(f"containers: {error}")
        return [], ours
    return sorted(filter(None, found), key=lambda box: str(box["name"])), ours


# The pod that an engine runs in, and the Deployment that made it.

# kubepods.slice/…-pod1234_…​.slice of systemd's driver, kubepods/…/pod1234-… of cgroupfs
_POD = re.compile(r"kubepods.*pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")
# what a pod is given to end by itself where its spec does not say
GRACE_S = 30
_SHM = "/dev/shm"
# a quantity as charts write sizes (kubernetes.io, "Resource Management": units of memory)
_SIZE = re.compile(r"(\d+)([KMG]?)(i?)")
# the cluster's own token, which no chart asks for
_TOKEN = "/var/run/secrets/kubernetes.io/"


def uid_of(cgroup: str) -> str | None:
    """Gives the UID of the pod in a cgroup path, or None."""
    found = _POD.search(cgroup)
    return found.group(1).replace("_", "-") if found else None


def _owner(row: Json, kind: str) -> str | None:
    """Gives the name of the owner of that kind, or None."""
    for owner in row["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == kind:
            return str(owner["name"])
    return None


def _deployment(client: kubectl.Client, pod: Json) -> Json | None:
    """Gives the Deployment above a pod, or None."""
    made_by = _owner(pod, "ReplicaSet")
    if made_by is None:
        return None
    where = ["--namespace", pod["metadata"]["namespace"]]
    name = _owner(client.json(["get", "replicaset", made_by, *where]), "Deployment")
    if name is None:
        return None
    found: Json = client.json(["get", "deployment", name, *where])
    return found


def _volumes(pod: Json, box: Json) -> list[Json]:
    """Gives the mounts of a container that come from the host."""
    paths = {row["name"]: row["hostPath"]["path"] for row in pod["spec"].get("volumes") or []
             if "hostPath" in row}  # fmt: skip
    return [
        {
            "source": paths[row["name"]],
            "target": row["mountPath"],
            "read_only": bool(row.get("readOnly")),
        }
        for row in box.get("volumeMounts") or []
        if row["name"] in paths
    ]


def _shm_bytes(pod: Json, box: Json) -> int:
    """Gives the limit of what is mounted in memory at /dev/shm; 0 where none is told."""
    names = [row["name"] for row in box.get("volumeMounts") or [] if row["mountPath"] == _SHM]
    for row in pod["spec"].get("volumes") or []:
        size = _SIZE.fullmatch(str((row.get("emptyDir") or {}).get("sizeLimit", "")))
        if row["name"] in names and size:
            step = 1024 if size.group(3) else 1000
            return int(size.group(1)) * int(step ** ("KMG".find(size.group(2) or "-") + 1))
    return 0


def _others(pod: Json, box: Json) -> Iterator[str]:
    """Gives what a recipe has no key for: volumes of the cluster's, and limits as HAMi's."""
    kinds = {row["name"]: next((key for key in row if key != "name"), "volume")
             for row in pod["spec"].get("volumes") or []}  # fmt: skip
    shm = _shm_bytes(pod, box)
    for row in box.get("volumeMounts") or []:
        kind, path = kinds.get(row["name"], "volume"), row["mountPath"]
        told = kind == "hostPath" or path.startswith(_TOKEN) or (path == _SHM and shm)
        if not told:
            yield f"{kind} {row['name']} at {path}"
    for name, value in sorted(((box.get("resources") or {}).get("limits") or {}).items()):
        yield f"limit {name}={value}"


def _container(pod: Json, identifier: str) -> Json:
    """Gives a FormerContainer of a pod's container."""
    spec = pod["spec"]
    states = (pod.get("status") or {}).get("containerStatuses") or []
    state: Json = next((s for s in states if str(s.get("containerID")).endswith(identifier)), {})
    boxes = spec["containers"]
    box = next((b for b in boxes if b["name"] == state.get("name")), boxes[0])
    image_id = str(state.get("imageID", ""))
    environ = {row["name"]: str(row.get("value", "")) for row in box.get("env") or []}
    limits = (box.get("resources") or {}).get("limits") or {}
    return {
        "id": identifier,
        "name": f"{pod['metadata']['name']}/{box['name']}",
        "image": box["image"],
        "image_id": image_id,
        "digests": [image_id.rpartition("://")[2]] if "@sha256:" in image_id else [],
        "tags": [],
        "state": next(iter(state.get("state") or {"unknown": None})),
        "main": [*(box.get("command") or []), *(box.get("args") or [])],
        "env": {name: MASK if rules_secret.is_secret(name, value) else value
                for name, value in sorted(environ.items())},
        "image_env": {},
        "mounts": _volumes(pod, box),
        "restart_policy": "no",
        "auto_remove": False,
        "network_mode": "host" if spec.get("hostNetwork") else "pod",
        "ipc_mode": "host" if spec.get("hostIPC") else "private",
        "shm_bytes": _shm_bytes(pod, box),
        "privileged": bool((box.get("securityContext") or {}).get("privileged")),
        "runtime": str(spec.get("runtimeClassName") or ""),
        "gpus": any("gpu" in name for name in limits),
        "labels": {},
        "other_options": list(_others(pod, box)),
        "changed": [],
    }  # fmt: skip


def pod_of(cgroup: str, unread: list[str]) -> tuple[Json | None, Json]:
    """Gives the container of an engine in a pod, None when it could not be read, and its
    supervisor. What could not be read is added to `unread`.
    """
    uid, identifier = uid_of(cgroup), proc.container_of(cgroup) or ""
    row: Json = {"kind": "pod", "name": f"pod {uid}", "starts_at_boot": True,
                 "evidence": f"cgroup {cgroup}"}  # fmt: skip
    try:
        client = kubectl.client("auto")
        pods: Any = client.json(["get", "pods", "--all-namespaces"])["items"]
        pod = next((p for p in pods if p["metadata"]["uid"] == uid), None)
        if pod is None:
            raise CannotRead(f"the cluster has no pod with UID {uid}")
        deployment = _deployment(client, pod)
    except (CannotRead, NodeError, KeyError) as error:
        unread.append(f"the pod of an engine: {error}")
        return None, row
    space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    row.update(namespace=space, name=f"{space}/{name}", evidence=f"pod {space}/{name} of nobody's")
    found = _container(pod, identifier)
    if deployment is not None:
        meta, template = deployment["metadata"], deployment["spec"]["template"]["spec"]
        names = [box["name"] for box in template["containers"]]
        own = found["name"].rpartition("/")[2]
        row.update(
            deployment=meta["name"],
            name=f"{space}/{meta['name']}",
            evidence=f"pod {space}/{name} of Deployment {space}/{meta['name']}",
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            template_container=own if own in names else names[0],
            grace_s=pod["spec"].get("terminationGracePeriodSeconds", GRACE_S),
        )
    return found, row


# Who starts a former engine, or would at the next boot: units, docker's policies, compose, cron.
#
# A row is a Supervisor (schema/hardware.py). Nothing is guessed: each says where it was
# seen.

_PROJECT = "com.docker.compose.project"
# docker's own words (docs.docker.com, "Start containers automatically"): on-failure starts nothing
# when the daemon starts; unless-stopped starts what ran
_AT_BOOT = {"always": True, "unless-stopped": True, "on-failure": False}


def _means(words: set[str], engines: Sequence[Json], boxes: Sequence[Json]) -> str | None:
    """Gives what words of a command line name of this host's engines, or None."""
    vllm = next((word for word in sorted(words) if "vllm" in word.lower()), None)
    named = next((b["name"] for b in boxes if {b["name"], b["id"][:12], b["id"]} & words), None)
    if named:
        return f"names container {named}"
    if vllm:
        return f"names {vllm}"
    for box in boxes:
        labels = box["labels"]
        where = labels.get(f"{_PROJECT}.working_dir")
        files = labels.get(f"{_PROJECT}.config_files", "").split(",")
        if ({where, *files} - {"", None}) & words:
            return f"names compose project {labels.get(_PROJECT)}"
    venvs = [engine["venv"] for engine in engines if engine["venv"]]
    found = next((word for word in sorted(words) for v in venvs if word.startswith(f"{v}/")), None)
    return f"names {found}" if found else None


def of_units(engines: Sequence[Json], boxes: Sequence[Json], unread: list[str]) -> Iterator[Json]:
    """Gives the units that hold an engine or name one, its container, or a script that does."""
    try:
        rows = units.read_units([])
    except CannotRead as error:
        unread.append(f"units: {error}")
        return
    held = api.docker_clients() if boxes else []
    for row in rows:
        name = str(row["name"])
        if name.startswith(OURS) or row["load_state"] == "not-found":
            continue
        holds = [e["pid"] for e in engines if e["unit"] == name]
        runs = [b["name"] for b in boxes if name in api.units_of(held, b["name"], b["id"])]
        told = {*row["exec_start"], *" ".join(row["exec_start_pre"]).split(), *row["script_words"]}
        why = (
            f"its cgroup holds pid {holds[0]}" if holds
            else f"its docker client holds container {runs[0]}" if runs
            else _means(told, engines, boxes)
        )  # fmt: skip
        if why:
            yield {
                "kind": "unit",
                "name": name,
                "starts_at_boot": row["enabled"] == "enabled" or bool(row["triggered_by"]),
                "evidence": f"{row['fragment']}: {why}",
                "enabled": row["enabled"],
                "active": f"{row['active_state']}/{row['sub_state']}",
                "restart": row["restart"],
                "triggered_by": row["triggered_by"],
            }


def of_users(cgroup: str, unread: list[str]) -> Iterator[Json]:
    """Gives the unit of somebody's own systemd that a cgroup is of; `unread` says that its state is
    not looked at, since only that user's manager tells it.
    """
    found = USERS.search(cgroup)
    if found is None:
        return
    uid, unit = int(found.group(1)), found.group(2)
    user = user_name(uid) or str(uid)
    unread.append(
        f"{unit} is a unit of {user}'s own systemd, which rigbook does not change: sudo systemctl "
        f"--user -M {user}@ disable --now {shlex.quote(unit)}"
    )
    yield {
        "kind": "unit",
        "name": unit,
        # with lingering that manager starts at the boot, else at the next login
        "starts_at_boot": os.path.exists(f"/var/lib/systemd/linger/{user}"),
        "evidence": f"cgroup {cgroup}: systemctl --user of {user}",
        "active": "active/running",
    }


def of_docker(boxes: Sequence[Json]) -> Iterator[Json]:
    """Gives a row for each container that docker starts again, and one for each compose project."""
    projects: dict[str, list[Json]] = {}
    for box in boxes:
        policy = box["restart_policy"]
        if policy not in ("no", ""):
            # one that was stopped by hand stays down with unless-stopped
            ran = policy == "always" or box["state"] in ("running", "restarting")
            yield {
                "kind": "container-policy",
                "name": box["name"],
                "starts_at_boot": _AT_BOOT.get(policy, True) and ran,
                "evidence": f"restart policy {policy}, {box['state']}",
                "containers": [box["name"]],
                "restart": policy,
            }
        if box["labels"].get(_PROJECT):
            projects.setdefault(box["labels"][_PROJECT], []).append(box)
    for project, members in projects.items():
        labels = members[0]["labels"]
        files = [f for f in labels.get(f"{_PROJECT}.config_files", "").split(",") if f]
        yield {
            "kind": "compose",
            "name": project,
            # compose itself starts nothing at boot: a policy, a unit or cron does
            "starts_at_boot": False,
            "evidence": f"labels of container {members[0]['name']}: {', '.join(files)}",
            "containers": [box["name"] for box in members],
            "project": project,
            "files": files,
            "working_dir": labels.get(f"{_PROJECT}.working_dir"),
            "services": [box["labels"].get("com.docker.compose.service", "") for box in members],
        }


def of_cron(engines: Sequence[Json], boxes: Sequence[Json], unread: list[str]) -> Iterator[Json]:
    """Gives the lines of crontabs that name an engine, its container, or a script that does."""
    try:
        rows = units.read_cron()
    except CannotRead as error:
        unread.append(f"crontabs: {error}")
        return
    for row in rows:
        why = _means(set(row["words"]), engines, boxes)
        if why:
            yield {
                "kind": "cron",
                "name": f"{row['file']}:{row['line']}",
                # a periodic line starts it some time after the boot
                "starts_at_boot": True,
                "evidence": f"{row['text'][:300]} ({why})",
                "file": row["file"],
                "line": row["line"],
                "text": row["text"],
            }


def _awake(row: Json) -> bool:
    """Gives False for a unit that neither runs nor comes back at the next boot."""
    return row["starts_at_boot"] or not row["active"].startswith(("inactive", "failed"))


def of_hands(engines: Sequence[Json], rows: Sequence[Json]) -> Iterator[Json]:
    """Gives a row for each engine that nothing of `rows` would start again."""
    containers = {name for row in rows for name in row.get("containers") or []}
    named = any(row["kind"] == "cron" or (row["kind"] == "unit" and _awake(row)) for row in rows)
    for engine in engines:
        main_of = engine["inside_of"] == "main" and engine["container"] in containers
        if main_of or engine["inside_of"] == "pod" or named:
            continue
        where = f" in container {engine['container']}" if engine["container"] else ""
        how = "docker exec" if engine["inside_of"] == "exec" else "docker run" if where else "shell"
        yield {
            "kind": "shell",
            "name": str(engine["pid"]),
            "starts_at_boot": False,
            "evidence": f"pid {engine['pid']}{where}: started by hand ({how}), nothing starts it "
            "again",
        }


# former: what runs a vLLM by other means than rigbook, and what would start it again; read-only.
#
# schema/hardware.py is the document's type.


def look_former(request: Any) -> Json:
    """Gives engines, containers, supervisors, and `unread`: what could not be looked at and why.

    `brief`: without the files that were put into containers by hand. Raises NodeError for a bad
    request only.
    """
    body = validate.keys(request, "request", ("brief",))
    brief = validate.boolean(body.get("brief", False), "brief")
    unread: list[str] = []
    found = former_engines()
    boxes, ours = former_containers({str(row["container"]) for row in found}, unread, brief)
    found = [row for row in found if row["container"] not in ours]
    by_id = {str(box["id"]): box for box in boxes}
    rows: list[Json] = []
    for engine in found:
        cgroup, identifier = str(engine.pop("cgroup")), engine["container"]
        box = by_id.get(str(identifier))
        rows += of_users(cgroup, unread)
        if uid_of(cgroup):
            # with cri-dockerd it is docker's, too, which does not know who starts it again
            boxes = [row for row in boxes if row is not box]
            box, row = pod_of(cgroup, unread)
            engine.update(inside_of="pod", container=box["name"] if box else None)
            boxes += [box] if box else []
            rows.append(row)
        elif box is not None:
            engine["container"] = box["name"]
            below = box["pid"] in (engine["pid"], *ancestors(engine["pid"]))
            engine["inside_of"] = "main" if below and not waits(box["main"]) else "exec"
        elif identifier is not None:
            engine["inside_of"] = "exec"
            unread.append(f"pid {engine['pid']} is in container {identifier[:12]}, which docker "
                          "does not tell about")  # fmt: skip
    rows += of_units(found, boxes, unread)
    rows += of_docker(boxes)
    rows += of_cron(found, boxes, unread)
    rows += of_hands(found, rows)
    told = [{name: value for name, value in box.items() if name != "pid"} for box in boxes]
    return {"engines": found, "containers": told, "supervisors": rows, "unread": unread}
