"""Kernel layer: the hosts answer, their clocks agree, their driver is there."""

from __future__ import annotations

import httpx
import pytest
from testinfra.host import Host

from deploys.plans.rig import endpoint
from facts.endpoint import Endpoint, ask, metric_names
from gates import artifact, fabric, gpu, host, processes, storage, weights
from gates import unit as gates_unit
from gates.core import GIB, MIB
from gates.processes import engine_unit, head_port, is_own, own_container, serves
from operations.engine import is_ours
from schema.plan import CONTAINER, UNIT, Node
from schema.render_engine import SCRIPT_IN_CONTAINER, SCRIPT_PATH
from schema.snapshot import Container, NodeSnapshot, Unit, Unreadable
from tests.infra.observe import Observation, as_planned, expect, known, no_findings, reached, serve
from tests.infra.plugin import Rig


def test_node_answers_with_its_boot(node: Node, host: Host, snapshot: NodeSnapshot) -> None:
    """The kernel that answers now is the one that the snapshot is about."""
    seen = host.check_output("cat /proc/sys/kernel/random/boot_id")
    print(f"{node.name}: boot_id {seen}, up {snapshot.identity.uptime_s:.0f} s")
    expect(
        seen == snapshot.identity.boot_id,
        node,
        f"boot_id {seen} now, {snapshot.identity.boot_id} a moment ago (it rebooted)",
        "one boot during the whole suite",
        "running this suite again",
    )


def test_every_section_of_the_snapshot_is_known(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """What a host cannot report is unknown, and unknown is not fine."""
    no_findings(rig, observation, [host.sections_readable], node)


def test_clock_agrees(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Logs and journals of the nodes and of this machine are compared by time."""
    off = observation.clock_off_s[node.name]
    expect(
        abs(off) <= host.CLOCK_SKEW_S,
        node,
        f"its clock is {off:+.1f} s off this machine's",
        f"within {host.CLOCK_SKEW_S:.0f} s",
        f"on {node.name}: sudo timedatectl set-ntp true && timedatectl status",
    )
    no_findings(rig, observation, [host.clock_skew], node, warn=True)


def test_driver_has_the_gpus_that_the_recipe_needs(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """A kernel without its NVIDIA module boots well and has no GPU."""
    no_findings(rig, observation, gpu.DRIVER_GATES, node)


# Memory layer: the engine left the host enough to live.

# Below this sshd itself dies sooner or later (eugr#257); 2 % of a Spark are 2.4 GiB.
LEAST = 512 * MIB
LEAST_SHARE = 0.02


def test_memory_is_not_exhausted(node: Node, snapshot: NodeSnapshot) -> None:
    """MemAvailable, not MemFree: clean page cache is not in the way."""
    memory = known(snapshot.memory, node, "memory")
    least = max(LEAST, memory.total * LEAST_SHARE)
    expect(
        memory.available >= least,
        node,
        f"{memory.available / GIB:.2f} of {memory.total / GIB:.2f} GiB available "
        f"(shared memory {memory.shmem / GIB:.2f} GiB)",
        f"{least / GIB:.2f} GiB or more",
        f"on {node.name}: ps -eo pid,rss,args --sort=-rss | head; ls -l /dev/shm",
    )


# Process layer: the engine lives, nothing outlived its supervisor, each port has one owner.


def test_engine_processes_live(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """A lost worker leaves the head's /health at 200 (lab-notes), so each node is looked at."""
    engine = known(snapshot.engine_processes, node, "engine_processes")
    own = [process for process in engine if is_own(snapshot, process)]
    expect(
        bool(own),
        node,
        f"no engine process of ours lives here ({len(engine)} of others)",
        f"vllm serve, {node.role} (rank {node.rank})",
        serve(rig),
    )


def test_no_engine_process_without_a_supervisor(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """An orphan holds memory, /dev/shm and the rendezvous's port."""
    no_findings(rig, observation, [processes.engine_orphan], node)


def test_no_port_of_ours_is_taken(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """The API's and the rendezvous's ports are held by nobody else."""
    no_findings(rig, observation, [processes.port_taken], node)


def test_api_port(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """The head answers clients; a worker that listens there was started without --headless."""
    port = head_port(rig.plan)
    holders = [p for p in known(snapshot.ports, node, "ports") if p.port == port]
    if node.role == "head":
        own = any(is_own(snapshot, holder) for holder in holders)
        expect(own, node, f"our engine does not listen on {port}", "it listens there", serve(rig))
    else:
        who = ", ".join(f"pid {h.pid} {h.process}" for h in holders)
        expect(not holders, node, f"{port} is held by {who}", "nobody, on a worker", serve(rig))


def test_rendezvous_port(rig: Rig, observation: Observation) -> None:
    """The head holds the port at which the ranks meet, for as long as they live."""
    if rig.plan.recipe.multi_node is None:
        return
    head = rig.plan.rig.head
    snapshot = reached(observation, head)
    port = rig.plan.recipe.multi_node.master_port
    holders = [p for p in known(snapshot.ports, head, "ports") if p.port == port]
    expect(
        any(is_own(snapshot, holder) for holder in holders),
        head,
        f"our engine does not hold {port}, the rendezvous of the ranks",
        "the head holds it",
        serve(rig),
    )


# Fabric layer: the private link between the nodes, which may come minutes late at boot.


def test_fabric_is_up_with_its_address(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Device, address and every slave of the bond; one slave down halves the rate in silence."""
    no_findings(rig, observation, [fabric.fabric_link, fabric.bond_slaves], node, warn=True)


def test_fabric_mtu(rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation) -> None:
    """The MTU of the device and of its slaves."""
    no_findings(rig, observation, [fabric.fabric_mtu], node)


def test_rdma_ports_are_those_that_the_engine_takes(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Each port of NCCL_IB_HCA is ACTIVE, with an address that the other nodes' ports share."""
    gates = [gate for gate in fabric.RDMA_GATES if gate is not fabric.hca_two_ports]
    no_findings(rig, observation, gates, node, warn=True)


def test_peers_are_reached_through_the_fabric(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """The route to each peer, and a full-size unfragmented ping along it."""
    no_findings(rig, observation, [fabric.fabric_peers], node)


# Storage layer: room, and no change of the rig that was left half done.


def test_disks_have_room(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Room for docker's layers and for the journal's pre-images."""
    no_findings(rig, observation, [storage.disk_room], node)


def test_no_change_is_open_or_inconsistent(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """A run that was killed leaves its change OPEN until somebody rolls it back."""
    gates = [storage.lock_free, storage.changes_closed, storage.journal_whole]
    no_findings(rig, observation, gates, node)


# Container layer: docker starts at boot, our container runs as the recipe says.
#
# A rig whose engine lives in a venv has no such container: test_08_venv.py looks at that.


def _running(rig: Rig, node: Node, snapshot: NodeSnapshot) -> Container:
    """Our container; the test fails where it does not run."""
    known(snapshot.docker, node, "docker")
    ours = own_container(snapshot)
    state = "absent" if ours is None else f"{ours.state} (exit status {ours.exit_code})"
    running = ours is not None and ours.state == "running"
    expect(running, node, f"container {CONTAINER} is {state}", "running", serve(rig))
    assert ours is not None
    return ours


def test_docker_runs_and_starts_at_boot(rig: Rig, node: Node, host: Host) -> None:
    """The engine's unit requires docker.service."""
    if rig.plan.recipe.container is None:
        return
    docker = host.service("docker")
    mend = f"on {node.name}: sudo systemctl enable --now docker.service"
    expect(docker.is_running, node, "docker.service is not active", "active", mend)
    expect(docker.is_enabled, node, "docker.service is not enabled", "enabled", mend)


def test_image_is_there_and_the_same_on_all_nodes(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """One tag may name two builds."""
    no_findings(rig, observation, artifact.IMAGE_GATES, node)


def test_container_runs_as_the_recipe_says(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Image, network, ipc, privileged, init, mounts."""
    if rig.plan.recipe.container is None:
        return
    _running(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"container", "image", "mount", "unknown"}))


def test_docker_restarts_nothing_by_itself(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """systemd is the one supervisor; a restart policy wedges a pair of ranks."""
    if rig.plan.recipe.container is None:
        return
    policy = _running(rig, node, snapshot).restart_policy
    expect(policy in ("no", ""), node, f"restart policy {policy!r}", "'no'", serve(rig))


def test_launch_script_is_mounted_from_the_host(
    rig: Rig, node: Node, host: Host, snapshot: NodeSnapshot
) -> None:
    """A script that lives only in the container's own layer is gone after the next start."""
    if rig.plan.recipe.container is None:
        return
    mounts = {mount.target: mount for mount in _running(rig, node, snapshot).mounts}
    mounted = mounts.get(SCRIPT_IN_CONTAINER)
    source = "nothing" if mounted is None else mounted.source
    expect(
        source == SCRIPT_PATH,
        node,
        f"{SCRIPT_IN_CONTAINER} in the container comes from {source}",
        SCRIPT_PATH,
        serve(rig),
    )
    expect(
        host.file(SCRIPT_PATH).is_file,
        node,
        f"{SCRIPT_PATH} is not on the host",
        "a file",
        serve(rig),
    )


# Container layer of a rig without containers: the venv that the engine lives in.


def test_venv_is_whole_and_of_the_recipes_version(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Folder, interpreter, program, version, user; silent for a container."""
    no_findings(rig, observation, artifact.VENV_GATES, node)


def test_engine_runs_from_the_active_venv(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """A link that was moved on since the start leaves the former engine serving."""
    as_planned(rig, node, snapshot, frozenset({"venv", "unknown"}))


def test_program_is_executed(rig: Rig, node: Node, host: Host) -> None:
    """Without rignode in between: the file is there and can be run by the engine's user."""
    spec = rig.plan.specs[node.name]
    if spec.venv is None:
        return
    done = host.run("sudo -n -u %s test -x %s/bin/vllm", spec.user, spec.venv)
    found = f"{spec.venv}/bin/vllm cannot be run by {spec.user}"
    expect(done.rc == 0, node, found, "a program that the engine's user can run", serve(rig))


# Unit layer: systemd starts the engine at boot, from files that are there.


def _unit(rig: Rig, node: Node, snapshot: NodeSnapshot) -> Unit:
    """Our unit; the test fails where systemd does not know it."""
    known(snapshot.units, node, "units")
    unit = engine_unit(snapshot)
    expect(unit is not None, node, f"{UNIT} does not exist", "enabled and active", serve(rig))
    assert unit is not None
    return unit


def story(unit: Unit) -> str:
    """How a unit is doing, in one line."""
    return (
        f"{unit.active_state} ({unit.sub_state}), {unit.restarts} restarts, result {unit.result}, "
        f"last exit status {unit.exit_status}, last line: {unit.last_log_line or 'none'}"
    )


def test_unit_enabled_and_active(rig: Rig, node: Node, host: Host, snapshot: NodeSnapshot) -> None:
    """Now, and after the next boot."""
    unit = _unit(rig, node, snapshot)
    service = host.service(UNIT)
    expect(service.is_enabled, node, f"{UNIT} is {unit.enabled}", "enabled", serve(rig))
    active = unit.active_state == "active" and service.is_running
    expect(active, node, f"{UNIT} is {story(unit)}", "active (running)", serve(rig))


def test_unit_starts_a_program_that_exists(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """A ghost: exit status 127 or 203 every few seconds, for days."""
    unit = _unit(rig, node, snapshot)
    no_findings(rig, observation, [gates_unit.unit_ghost], node, warn=True)
    if unit.exec_start_exists is None:
        pytest.fail(f"{node.name}: whether {unit.exec_start} exists is unknown", pytrace=False)


def test_unit_is_loaded_as_it_stands_on_disk(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """No pending daemon-reload, no drop-in of somebody else."""
    _unit(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"unit", "unknown"}))


# Artifact layer: the weights, and the files that rigbook wrote.


def test_weights_are_whole_and_equal(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Names, sizes and magic of every shard, on every node."""
    no_findings(rig, observation, weights.GATES, node)


def test_files_are_as_the_recipe_renders_them(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Launch script, environment and unit: content, mode, owner."""
    as_planned(rig, node, snapshot, frozenset({"file", "unknown"}))


def test_files_read_directly(rig: Rig, node: Node, host: Host) -> None:
    """The same files without rignode in between: what it reports is what is there."""
    for document in rig.plan.documents[node.name]:
        there = host.run("cat -- %s", document.path)
        if there.rc != 0 or there.stdout != document.content:
            what = "differs from the recipe" if there.rc == 0 else there.stderr.strip()
            pytest.fail(
                f"{node.name}: {document.path}: {what}; mend it with: {serve(rig)}", pytrace=False
            )


# Recipe layer: what the live engine was started with is what the recipe says.


def _live_argv(rig: Rig, node: Node, snapshot: NodeSnapshot) -> tuple[str, ...]:
    """The command line of our living `vllm serve`; the test fails where there is none."""
    engine = known(snapshot.engine_processes, node, "engine_processes")
    lines = [p.argv for p in engine if is_own(snapshot, p) and serves(p.argv)]
    expect(bool(lines), node, "no `vllm serve` of ours runs", "one runs", serve(rig))
    return lines[0]


def test_live_arguments_equal_the_recipe(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Flag by flag, in the profile that --rig-data names, or the default one."""
    _live_argv(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"flag", "unknown"}))


def test_live_environment_equals_the_recipe(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """The process's own environment, forbidden variables as well."""
    _live_argv(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"environment", "forbidden", "unknown"}))


def test_headless_as_its_role(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Only a worker is headless: a second API server answers with half a model."""
    headless = "--headless" in _live_argv(rig, node, snapshot)
    found = f"the {node.role} runs {'with' if headless else 'without'} --headless"
    wanted = "--headless on workers only"
    expect(headless == (node.role == "worker"), node, found, wanted, serve(rig))


# Endpoint layer: a client gets an answer.

ANSWER_TIMEOUT_S = 60.0


def _units(rig: Rig, observation: Observation) -> str:
    """How the units are doing: a node that restarted alone wedges the pair."""
    told = []
    for name, seen in observation.snapshots.items():
        unit = None if isinstance(seen, Unreadable) else engine_unit(seen)
        if unit is None:
            told.append(f"{name}: no unit seen")
        else:
            told.append(f"{name}: {unit.active_state} ({unit.sub_state}), {unit.restarts} restarts")
    return "; ".join(told)


def _where(rig: Rig, observation: Observation) -> Endpoint:
    """The endpoint, with the key where the node shows our own engine there."""
    where, head = endpoint(rig.plan), rig.plan.rig.head.name
    seen = observation.snapshots[head]
    ours = not isinstance(seen, Unreadable) and is_ours(seen, head, where)
    return where.held_by_ours() if ours else where


def test_a_real_completion(rig: Rig, observation: Observation) -> None:
    """/health stays 200 while a rank is lost; only a completion with content proves service."""
    answer = ask(_where(rig, observation), ANSWER_TIMEOUT_S)
    if answer.ok:
        print(f"{rig.plan.recipe.served_model_name}: {answer.detail}: {answer.text!r}")
    expect(
        answer.ok,
        rig.plan.rig.head,
        f"no completion: {answer.detail} (units: {_units(rig, observation)})",
        "a completion with content",
        f"{serve(rig)} (it restarts the pair, never one node alone)",
    )


def test_metrics_are_reachable(rig: Rig, observation: Observation) -> None:
    """Prometheus and the benchmarks read them."""
    where = _where(rig, observation)
    try:
        count, trouble = len(metric_names(where)), ""
    except httpx.HTTPError as error:
        count, trouble = 0, f"{type(error).__name__}: {error}"
    expect(
        count > 0,
        rig.plan.rig.head,
        f"no vllm: metric at {where.base_url}/metrics {trouble}".rstrip(),
        "one or more",
        f"pyinfra {rig.inventory} deploys/doctor.py -y",
    )
