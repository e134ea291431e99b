"""Whose port it is, which listeners a connection may reach, and what ends a holder for good."""

from __future__ import annotations

import pytest

from node.rules import ownership
from tests.unit.builders.engine_parts import FOREIGN, foreign_container
from tests.unit.builders.host_parts import OURS, port, unit

UNIT = "rigbook-engine.service"


@pytest.mark.parametrize(("holder", "container", "ours"), [
    ({"unit": UNIT}, None, True), ({"unit": None, "container_id": OURS}, OURS[:12], True),
    ({"unit": None, "container_id": FOREIGN}, OURS, False), ({"unit": "x.service"}, OURS, False),
    ({"unit": None, "container_id": OURS}, None, False), ({"unit": None, "pid": None}, None, False),
    # `docker run` is of our unit, and holds no port; what is of it is ours
    ({"unit": UNIT}, OURS, True),
])  # fmt: skip
def test_a_holder_is_of_our_unit_or_our_container(
    holder: dict[str, object], container: str | None, ours: bool
) -> None:
    assert ownership.is_ours(port(8000, **holder), UNIT, container) is ours


@pytest.mark.parametrize(("address", "asked", "reached"), [
    ("0.0.0.0", "10.0.0.1", True), ("::", "10.0.0.1", True), ("10.0.0.1", "10.0.0.1", True),
    ("127.0.0.1", "10.0.0.1", False), ("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "rig", True),
])  # fmt: skip
def test_every_listener_that_may_answer_counts(address: str, asked: str, reached: bool) -> None:
    """Two processes share a port with SO_REUSEPORT: nobody knows which one answered."""
    rows = [port(8000, address=address), port(8000, address=address, pid=9), port(22)]
    assert ownership.at(rows, 8000, asked) == (rows[:2] if reached else [])


def test_a_holder_that_nobody_keeps_is_left_to_its_pid() -> None:
    """A login's unit supervises nothing."""
    for name in (None, "user@1000.service", "ssh.service"):
        assert ownership.end(port(8000, unit=name), (), ()) is None


def test_a_container_that_docker_does_not_list_is_named_by_its_id() -> None:
    """Docker could not be read."""
    found = ownership.end(port(8000, unit=None, container_id=FOREIGN), (), ())
    assert found == (f"sudo docker stop {FOREIGN[:12]}", "")


def test_a_unit_that_starts_a_shell_with_docker_exec_is_named() -> None:
    """As the seed writes it: quotes and semicolons stand beside the container's name."""
    seed = unit(
        name="head.service",
        restart="no",
        enabled="disabled",
        exec_start=("/bin/sh", "-c", "docker start vllm_ds4; docker exec vllm_ds4 x"),
    )
    box = foreign_container(restart_policy="no")
    found = ownership.end(port(8000, unit=None, container_id=FOREIGN), (box,), (seed,))
    assert found == ("sudo systemctl stop head.service && sudo docker stop vllm_ds4", "")
