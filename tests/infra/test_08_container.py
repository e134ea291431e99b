"""Container layer: docker starts at boot, our container runs as the recipe says.

A rig whose engine lives in a venv has no such container: test_08_venv.py looks at that.
"""

from __future__ import annotations

from testinfra.host import Host

from gates.artifact import image
from gates.engine.state import own_container
from schema.desired.plan import CONTAINER
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.snapshot import NodeSnapshot
from schema.render.engine_files import SCRIPT_IN_CONTAINER, SCRIPT_PATH
from tests.infra.observe import Observation, as_planned, expect, known, no_findings, serve
from tests.infra.plugin import Rig


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
    no_findings(rig, observation, image.GATES, node)


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
