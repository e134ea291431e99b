"""What is told of NCCL's network on all nodes."""

from __future__ import annotations

import pytest

from deploys.common.rdma_proof import told
from facts.nccl_log import NcclNetwork

IB = NcclNetwork({"IB": 3}, ("IB",), ("[0]rocep1s0f1:1/RoCE",))
TCP = NcclNetwork({"Socket": 3}, ("Socket",), ("[0]bond0:10.0.0.1<0>",))
SILENT = NcclNetwork({}, (), ())


@pytest.mark.parametrize(
    ("seen", "is_rdma", "line"),
    [
        ({"a": IB, "b": IB}, True, "NCCL of a, b uses RDMA (NET/IB) through [0]rocep1s0f1:1/RoCE"),
        ({"a": IB, "b": TCP}, False, "NCCL of b uses TCP (NET/Socket), not RDMA"),
        (
            {"a": NcclNetwork({"IB": 1, "Socket": 1}, (), ()), "b": IB},
            False,
            "NCCL of a uses NET/IB and TCP (NET/Socket), not RDMA",
        ),
        (
            {"a": SILENT, "b": None},
            False,
            "the log of a does not say which network NCCL uses; the log of b does not say which "
            "network NCCL uses",
        ),
    ],
)
def test_what_is_told(seen: dict[str, NcclNetwork | None], is_rdma: bool, line: str) -> None:
    assert told(seen) == (is_rdma, line)
