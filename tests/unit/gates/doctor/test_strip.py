"""The strip: the worst finding of a layer, on its node; what was not asked is not called well."""

from __future__ import annotations

import pytest

from gates.core.violation import Layer
from gates.doctor.strip import State
from tests.unit.builders.pages import finding, look

MTU = finding("fabric-mtu", "spark1", "MTU below 9000")
NICS = finding("nic-errors", "spark1", "errors grew")
MEMORY = finding("memory-unreadable", "spark2", "could not be read", unknown=True)
RIG = finding("other-rig", None, "another rig's")
GONE = finding("nodes-reachable", "spark2", "no ssh connection")
TABLE: dict[str, tuple[tuple[object, ...], str | None, str, Layer, State | None]] = {
    "nothing": ((), None, "spark1", Layer.FABRIC, "ok"),
    "it blocks": ((MTU,), None, "spark1", Layer.FABRIC, "block"),
    "on its node alone": ((MTU,), None, "spark2", Layer.FABRIC, "ok"),
    "in its layer alone": ((MTU,), None, "spark1", Layer.STORAGE, "ok"),
    "it warns": ((NICS,), None, "spark1", Layer.FABRIC, "warn"),
    "the worst of two": ((NICS, MTU), None, "spark1", Layer.FABRIC, "block"),
    "unknown is no block": ((MEMORY,), None, "spark2", Layer.MEMORY, "unknown"),
    "the rig's is each node's": ((RIG,), None, "spark2", Layer.FIRMWARE, "block"),
    "a silent node": ((GONE,), "spark2", "spark2", Layer.DRIVER, "unknown"),
    "why it is silent": ((GONE,), "spark2", "spark2", Layer.FIRMWARE, "block"),
    "beside a silent node": ((GONE,), "spark2", "spark1", Layer.DRIVER, "ok"),
    "a worker has no endpoint": ((), None, "spark2", Layer.ENDPOINT, None),
    "the head has": ((), None, "spark1", Layer.ENDPOINT, "ok"),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_layer_has_the_worst_that_was_found(name: str) -> None:
    found, lost, node, layer, state = TABLE[name]
    assert look((), found, lost).strips[node].get(layer) == state  # type: ignore[arg-type]


def test_an_endpoint_that_was_not_asked_is_in_no_strip() -> None:
    made = look((), (), probed=False).strips
    assert all(Layer.ENDPOINT not in strip for strip in made.values())


def test_layers_come_lowest_first() -> None:
    assert [*look((), ()).strips["spark1"]] == [*Layer]
