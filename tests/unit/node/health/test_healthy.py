"""No finding of any gate on what was recorded on hosts that were well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.health import disks, gpus, kernel_log
from schema.observed.health import Health
from tests.unit.builders.host_parts import BOOT, NOW
from tests.unit.node.support.doctor import found_with

FIXTURES = Path(__file__).parents[3] / "fixtures" / "nvidia-smi"
CARDS = [*sorted((FIXTURES / "public").glob("*.xml")), *sorted(FIXTURES.glob("*_query.xml"))]
# cards without a display whose owners had left persistence mode off
OFF = {"a100-sxm4-v12", "a10g", "tesla-t4", "rtx-3080-v13", "gtx-1660-ti", "quadro-p400", "qx-b200"}
LINES: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("lines.yaml").read_text())[
    "healthy"
]
PARTS = yaml.safe_load(Path(__file__).with_name("healthy.yaml").read_text())
# leptonai/gpud pkg/disk/testdata/mountinfo, and man 5 proc_pid_mountinfo
MOUNTS = """\
838 589 253:0 /var/lib/lxc/x/rootfs / rw,relatime shared:518 master:1 - ext4 /dev/mapper/vg-root rw
1199 838 259:7 / /mnt/local-volume/vol-0 rw,relatime shared:519 - ext4 /dev/nvme2n1p1 rw
924 901 0:44 /proc/cpuinfo /proc/cpuinfo rw,nosuid master:239 - fuse.lxcfs lxcfs rw,user_id=0
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
29 28 7:1 / /snap/core/1 ro,nodev shared:2 - squashfs /dev/loop1 ro,errors=continue
30 28 8:1 / /mnt ro,relatime - ext4 /dev/sda1 ro
"""


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_recorded_card(path: Path) -> None:
    rows = gpus.parse(path.read_text())
    found = found_with(Health.model_validate({"gpus": rows}))
    assert found == ([("persistence-off", "spark1")] if path.stem in OFF else [])
    assert rows and all(row["bus_id"] and row["temp_c"] for row in rows)


@pytest.mark.parametrize("source", LINES)
def test_recorded_lines_of_the_kernel(source: str) -> None:
    records = [f"6,{n},{n},-;{line}\n" for n, line in enumerate(LINES[source])]
    rows = kernel_log.parse_kmsg(records, BOOT, NOW - 60)
    assert found_with(Health.model_validate({"kernel": rows, "fixed": ["sda", "nvme0n1"]})) == []


@pytest.mark.parametrize("row", PARTS, ids=lambda row: str(row["case"]))
def test_a_recorded_part(row: dict[str, Any]) -> None:
    part = {name: value for name, value in row.items() if name not in ("case", "source")}
    part["kernel"] = [{"boot": BOOT, "unix_s": NOW - 60, **line} for line in part.get("kernel", [])]
    assert row["source"] and found_with(Health.model_validate(part)) == []


def test_recorded_mounts(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert disks.turned_read_only(str(tmp_path / "mountinfo")) == []


def test_there_are_enough_of_them() -> None:
    assert len(CARDS) + len(LINES) + len(PARTS) >= 40
