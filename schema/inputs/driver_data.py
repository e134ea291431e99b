"""The keys of a change of the driver; here alone a lease is on by itself (docs/adr/0028)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from node.rules.heartbeat import LEASE_S, LEAST_LEASE_S
from schema.core.host_keys import key
from schema.core.types import Name, Release, as_text
from schema.inputs.host_data import LeasedData, as_lease
from schema.recipe.venv import Version


def _as_driver(value: object) -> object:
    """A driver's version that pyinfra read as a number: 580.142. The node's lists tell 580.150 from
    580.15, which are the same number (node/driver/apt_plan.py).
    """
    return str(value) if type(value) in (int, float) else value


class DriverData(LeasedData):
    """driver."""

    lease: Annotated[int | None, BeforeValidator(as_lease)] = key(
        LEASE_S,
        "the nodes go back by themselves after so long without a sign of life; false: they do not",
        "seconds",
        ge=LEAST_LEASE_S,
        le=86400,
    )
    version: Annotated[Version | None, BeforeValidator(_as_driver)] = key(
        None, "the driver, such as 580.142"
    )
    latest: bool = key(False, "the newest driver that the lists have")
    family: Annotated[Name | None, BeforeValidator(as_text)] = key(
        None, "another branch, such as 590; with version or latest"
    )
    candidate: Release | None = key(None, "a kernel to boot with it once, prove and pin")
    budget: int = key(
        1800, "from a kernel's start until it must be blessed", "seconds", ge=30, le=86400
    )
