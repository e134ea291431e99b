"""What a snapshot cannot tell ends the run; it is never taken for what is not there."""

from __future__ import annotations

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.common.snapshot_view import files_in, units_in
from schema.observed.snapshot import NodeSnapshot, Unreadable

BLIND = NodeSnapshot.model_construct(
    files=Unreadable(unreadable="EIO: /etc"), units=Unreadable(unreadable="no systemd")
)


def test_files_that_cannot_be_read_are_not_absent() -> None:
    with pytest.raises(DeployError, match="the files cannot be read: EIO: /etc"):
        files_in(BLIND)


def test_units_that_cannot_be_read_are_not_unknown() -> None:
    with pytest.raises(DeployError, match="the units cannot be read: no systemd"):
        units_in(BLIND)
