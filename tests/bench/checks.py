"""The twenty checks, each as an idiomatic Ansible task and as one line of shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from deploys.common.load_and_gate import endpoint
from gates.transfer.fabric import PING_OVERHEAD
from node.rules.completion import MAX_TOKENS, PROMPT
from schema.desired.plan import CONTAINER, UNIT, Plan
from schema.desired.rig import Node
from schema.render.engine_files import ENV_PATH, SCRIPT_PATH, UNIT_PATH

# What starts the engine; serve looks at its other files as well.
ENGINE_FILES = (SCRIPT_PATH, ENV_PATH, UNIT_PATH)
STATE_DIR = "/var/lib/rigbook"
DOCKER_DIR = "/var/lib/docker"
MIN_AVAILABLE_KIB = 512 * 1024
MIN_ROOM_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Check:
    """One check that changes nothing: its name, its task, its line of shell ("" for none)."""

    name: str
    task: Mapping[str, object]
    shell: str


def checks(plan: Plan, node: Node) -> list[Check]:
    """The twenty checks of one node. The tasks are the same on all nodes: what differs there is a
    variable (`host_vars`). The completion is asked once, from here, so it has no line of shell."""
    return [
        *_files(plan, node),
        *_supervision(plan),
        *_ports(plan, node),
        *_fabric(plan, node),
        *_room(plan, node),
        _completion(plan),
    ]


def host_vars(plan: Plan, node: Node) -> dict[str, object]:
    """What differs between the nodes, as variables of the tasks."""
    return {
        "is_head": node.role == "head",
        "lan_address": str(node.lan_address),
        "peer": _peer(plan, node),
        "weights": plan.specs[node.name].weights,
    }


def _peer(plan: Plan, node: Node) -> str:
    """The fabric address of the node's first peer."""
    return next(str(n.fabric_address) for n in plan.rig.nodes if n.name != node.name)


def _files(plan: Plan, node: Node) -> list[Check]:
    found = []
    for document in plan.documents[node.name]:
        if document.path not in ENGINE_FILES:
            continue
        name = document.path.rpartition("/")[2]
        copy = {
            "src": f"{{{{ inventory_hostname }}}}/{name}",
            "dest": document.path,
            "owner": "root",
            "group": "root",
            "mode": document.mode,
        }
        wanted = shlex.quote(document.content)
        attributes = f"{int(document.mode, 8):o} root root"
        shell = (
            f"printf %s {wanted} | cmp -s - {document.path} && "
            f'test "$(stat -c "%a %U %G" {document.path})" = "{attributes}"'
        )
        # check_mode: where the file differs, the task says so and the host stays as it is.
        task = {"ansible.builtin.copy": copy, "check_mode": True}
        found.append(Check(f"file {name}", task, shell))
    return found


def _supervision(plan: Plan) -> list[Check]:
    assert plan.recipe.container is not None
    image = plan.recipe.container.image

    def service(name: str) -> dict[str, object]:
        wanted = {"name": name, "enabled": True, "state": "started"}
        return {"ansible.builtin.systemd_service": wanted, "check_mode": True}

    running = "(seen.stdout | from_json)[0].State.Running"
    policy = "(seen.stdout | from_json)[0].HostConfig.RestartPolicy.Name"
    show = "docker inspect -f '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}'"
    return [
        Check(
            "engine unit enabled and started",
            service(UNIT),
            f"systemctl is-enabled -q {UNIT} && systemctl is-active -q {UNIT}",
        ),
        Check(
            "docker enabled and started",
            service("docker.service"),
            "systemctl is-enabled -q docker.service && systemctl is-active -q docker.service",
        ),
        Check(
            "no daemon-reload pending",
            _command(
                ["systemctl", "show", "-p", "NeedDaemonReload", UNIT], "'=no' not in seen.stdout"
            ),
            f"test $(systemctl show -p NeedDaemonReload {UNIT}) = NeedDaemonReload=no",
        ),
        Check(
            "image present",
            _command(["docker", "image", "inspect", image], "seen.rc != 0"),
            f"docker image inspect {image}",
        ),
        Check(
            "container runs, restart policy no",
            _command(["docker", "inspect", CONTAINER], f"not {running} or {policy} != 'no'"),
            f"test \"$({show} {CONTAINER})\" = 'true no'",
        ),
        Check(
            "engine process lives",
            _command(["docker", "top", CONTAINER, "-eo", "pid,args"], "'serve' not in seen.stdout"),
            f"docker top {CONTAINER} -eo pid,args | grep -q serve",
        ),
    ]


def _ports(plan: Plan, node: Node) -> list[Check]:
    is_head = node.role == "head"
    port = plan.recipe.port
    rendezvous = plan.recipe.multi_node.master_port if plan.recipe.multi_node else port
    wait = {
        "host": "{{ lan_address }}",
        "port": port,
        "state": "{{ 'started' if is_head else 'stopped' }}",
        "timeout": 5,
    }
    listens = ["ss", "-Hltn", f"sport = :{rendezvous}"]
    return [
        Check("API port", {"ansible.builtin.wait_for": wait}, _port(port, is_head)),
        Check(
            # ss and not a connection: the rendezvous is the engine's own.
            "rendezvous port",
            _command(listens, "(seen.stdout | length > 0) != is_head"),
            _port(rendezvous, is_head),
        ),
    ]


def _port(port: int, wanted: bool) -> str:
    return f"test {'-n' if wanted else '-z'} \"$(ss -Hltn 'sport = :{port}')\""


def _fabric(plan: Plan, node: Node) -> list[Check]:
    fabric = plan.rig.fabric
    device = node.fabric_device
    assert fabric is not None and device is not None, "the bench compares runs on two nodes"
    mtu, peer = fabric.mtu, _peer(plan, node)
    ping = ["ping", "-q", "-c", "1", "-W", "2", "-M", "do", "-s", str(mtu - PING_OVERHEAD)]
    ping += ["-I", device]
    link = "(seen.stdout | from_json)[0]"
    return [
        Check(
            "fabric link up, MTU",
            _command(
                ["ip", "-j", "link", "show", "dev", device],
                f"{link}.mtu != {mtu} or {link}.operstate not in ['UP', 'UNKNOWN']",
            ),
            f"test $(cat /sys/class/net/{device}/mtu) = {mtu} && "
            f"grep -Eq 'up|unknown' /sys/class/net/{device}/operstate",
        ),
        Check(
            "fabric route",
            _command(["ip", "-j", "route", "get", "{{ peer }}"], f"{link}.dev != '{device}'"),
            f"ip route get {peer} | grep -q 'dev {device} '",
        ),
        Check(
            "full-size ping",
            _command([*ping, "{{ peer }}"], "seen.rc != 0"),
            shlex.join([*ping, peer]),
        ),
    ]


def _room(plan: Plan, node: Node) -> list[Check]:
    weights = plan.specs[node.name].weights
    number = r"regex_search('MemAvailable:\s+(\d+)', '\\1') | first | int"
    return [
        Check(
            "memory available",
            {
                "ansible.builtin.slurp": {"src": "/proc/meminfo"},
                "register": "seen",
                "failed_when": f"(seen.content | b64decode | {number}) < {MIN_AVAILABLE_KIB}",
            },
            f"awk '/^MemAvailable/ {{exit $2 < {MIN_AVAILABLE_KIB}}}' /proc/meminfo",
        ),
        Check(
            "disk room",
            _command(
                ["df", "--output=avail", "-B1", DOCKER_DIR],
                f"(seen.stdout_lines[-1] | int) < {MIN_ROOM_BYTES}",
            ),
            f"test $(df --output=avail -B1 {DOCKER_DIR} | tail -n 1) -ge {MIN_ROOM_BYTES}",
        ),
        Check(
            "shared memory",
            {"ansible.builtin.find": {"paths": "/dev/shm", "patterns": "psm_*,sem.mp-*"}},
            "ls /dev/shm",
        ),
        Check("journal folder", _stat(STATE_DIR), f"test -d {STATE_DIR}"),
        Check("weights", _stat("{{ weights }}"), f"test -d {shlex.quote(weights)}"),
    ]


def _command(argv: list[str], failed_when: str) -> dict[str, object]:
    """A task that only reads."""
    return {
        "ansible.builtin.command": {"argv": argv},
        "register": "seen",
        "changed_when": False,
        "failed_when": failed_when,
    }


def _stat(path: str) -> dict[str, object]:
    stat = {"path": path, "get_checksum": False}
    failed = "not seen.stat.exists or not seen.stat.isdir"
    return {"ansible.builtin.stat": stat, "register": "seen", "failed_when": failed}


def _completion(plan: Plan) -> Check:
    """The same question as serve's, so that both wait for the same number of tokens."""
    where = endpoint(plan)
    message = {"role": "user", "content": PROMPT}
    uri = {
        "url": f"{where.base_url}/v1/chat/completions",
        "method": "POST",
        "body_format": "json",
        "body": {"model": where.model, "messages": [message], "max_tokens": MAX_TOKENS},
        "timeout": 60,
    }
    failed = "not seen.json.choices[0].message.content"
    here = {"delegate_to": "localhost", "become": False, "run_once": True}
    task = {"ansible.builtin.uri": uri, "register": "seen", "failed_when": failed, **here}
    return Check("a real completion", task, "")
