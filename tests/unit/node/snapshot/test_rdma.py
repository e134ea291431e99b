"""Ports of RDMA devices, from trees of sysfs as real machines have them (rdma_trees.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.snapshot import rdma
from schema.observed.network import RdmaPort

TREES = yaml.safe_load(Path(__file__).with_name("rdma_trees.yaml").read_text())
TABLE = ("gids", "gid_attrs/types", "gid_attrs/ndevs")


def written(root: Path, tree: dict[str, Any]) -> str:
    """The folder with the tree's files; a row without a type has none that could be read."""
    for device, what in tree.items():
        port = root / device / "ports" / "1"
        for netdev in what["net"]:
            (root / device / "device/net" / netdev).mkdir(parents=True)
        for folder in TABLE:
            (port / folder).mkdir(parents=True)
        for name, text in what["port"].items():
            (port / name).write_text(f"{text}\n")
        for index, row in what["gids"].items():
            for folder, text in zip(TABLE, row, strict=False):
                (port / folder / str(index)).write_text(f"{text}\n")
    return str(root)


@pytest.mark.parametrize("case", TREES)
def test_ports_are_read_as_they_are(tmp_path: Path, case: str) -> None:
    found = [RdmaPort(**row) for row in rdma.read(written(tmp_path, TREES[case]["tree"]))]
    told = [
        [p.device, p.port, p.netdev, p.state, p.link, p.rate_gbit,
         [[gid.index, str(gid.ipv4)] for gid in p.gids if gid.ipv4]]
        for p in found
    ]  # fmt: skip
    assert told == TREES[case]["says"]
    assert all(gid.gid.strip("0:") for port in found for gid in port.gids), "an empty row is told"


def test_a_cards_model_and_firmware(tmp_path: Path) -> None:
    """leptonai/gpud's recorded sysfs of an H100 node has both files."""
    (port,) = rdma.read(written(tmp_path, {"mlx5_0": {"net": [], "port": {}, "gids": {}}}))
    assert (port["board"], port["firmware"]) == (None, None)
    (tmp_path / "mlx5_0" / "fw_ver").write_text("28.41.1000\n")
    (tmp_path / "mlx5_0" / "board_id").write_text("MT_0000000838\n")
    (port,) = rdma.read(str(tmp_path))
    assert (port["board"], port["firmware"]) == ("MT_0000000838", "28.41.1000")


def test_a_host_without_rdma_devices_has_no_port(tmp_path: Path) -> None:
    assert rdma.read(str(tmp_path / "absent")) == rdma.read(str(tmp_path)) == []
