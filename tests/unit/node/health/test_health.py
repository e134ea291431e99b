"""No finding of any gate on what was recorded on hosts that were well."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gates import health as gates_health
from node import gpus, health
from node.core import proc
from node.core.errors import CannotRead
from node.core.run import Done
from node.engine import watch
from schema import compatibility
from schema.load import plan
from schema.plan import Plan
from schema.snapshot import Health, KernelLine, Unknown
from tests.unit.builders import rigs
from tests.unit.builders.host_parts import BOOT as host_parts_BOOT
from tests.unit.builders.host_parts import NOW
from tests.unit.builders.rigs import ROOT, host, spark_plan
from tests.unit.node.support.host import Host, found_with

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
    rows = health.parse_kmsg(records, host_parts_BOOT, NOW - 60)
    assert found_with(Health.model_validate({"kernel": rows, "fixed": ["sda", "nvme0n1"]})) == []


@pytest.mark.parametrize("row", PARTS, ids=lambda row: str(row["case"]))
def test_a_recorded_part(row: dict[str, Any]) -> None:
    part = {name: value for name, value in row.items() if name not in ("case", "source")}
    part["kernel"] = [
        {"boot": host_parts_BOOT, "unix_s": NOW - 60, **line} for line in part.get("kernel", [])
    ]
    assert row["source"] and found_with(Health.model_validate(part)) == []


def test_recorded_mounts(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert health.turned_read_only(str(tmp_path / "mountinfo")) == []


def test_there_are_enough_of_them() -> None:
    assert len(CARDS) + len(LINES) + len(PARTS) >= 40


# Which lines of the kernel are told: recorded ones of hosts that were well, and of sick ones.

TABLE = yaml.safe_load(Path(__file__).with_name("lines.yaml").read_text())
HEALTHY = [line for lines in TABLE["healthy"].values() for line in lines]
SICK = [row for rows in TABLE["sick"].values() for row in rows]
BOOT = "5d1f5f0e-0000-4000-8000-000000000001"


@pytest.mark.parametrize("line", HEALTHY)
def test_a_line_of_a_healthy_host_is_not_told(line: str) -> None:
    found = health.kernel_log_classified(line, BOOT, 0.0)
    assert found is None


@pytest.mark.parametrize("row", SICK, ids=lambda row: str(row[0])[:40])
def test_a_fault_is_told_with_its_device(row: list[Any]) -> None:
    text, kind, device, number = row
    found = health.kernel_log_classified(text, BOOT, 0.0)
    assert found is not None
    line = KernelLine(**found)
    assert (line.kind, line.device, line.number) == (kind, device, number)


def test_every_documented_xid_is_read(tmp_path: Path) -> None:
    table = compatibility.load_xids(Path(__file__).parents[4])
    assert [xid.code for xid in table.xids] == list(range(1, 173))
    for xid in table.xids:
        found = health.kernel_log_classified(
            f"NVRM: Xid (PCI:0000:01:00): {xid.code}, x", BOOT, 0.0
        )
        assert found is not None and found["number"] == xid.code


def test_records_of_dev_kmsg_have_their_time() -> None:
    records = [
        "6,3964,206764307,-;nvidia-nvswitch2: open (major=510)\n SUBSYSTEM=pci\n DEVICE=+pci:1",
        "4,3965,1500000,-;NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n",
        "no record",
    ]
    (row,) = health.parse_kmsg(records, BOOT, 1000.0)
    assert (row["unix_s"], row["boot"], row["number"]) == (1001.5, BOOT, 79)


def test_a_disk_that_fails_all_day_hides_no_gpu() -> None:
    words = [
        "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
        *["I/O error, dev sda, x"] * 999,
    ]
    rows = health.parse_kmsg([f"3,1,{n},-;{text}" for n, text in enumerate(words)], BOOT, 0.0)
    assert [row["kind"] for row in rows] == ["gpu-lost", *["disk"] * health.MAX_LINES]
    assert rows[-1]["unix_s"] == 999 / 1e6


def test_the_journal_has_earlier_boots_and_what_the_ring_has_lost(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge for each container fills the ring: the Xid of the first hour is in the journal."""
    own, old = BOOT.replace("-", ""), "00000000000040008000000000000009"
    shown, lost = SICK[0][0], SICK[3][0]
    said = [(old, shown), (own, HEALTHY[0]), (own, lost), (own, shown)]
    lines = [{"_BOOT_ID": boot, "MESSAGE": text} for boot, text in said]
    out = "\n".join(json.dumps({**line, "__REALTIME_TIMESTAMP": "2000000"}) for line in lines[::-1])
    monkeypatch.setattr(health, "run", lambda *_: Done(0, out + "\nbroken", ""))
    monkeypatch.setattr(health.proc, "boot_id", lambda: BOOT)
    ring = health.parse_kmsg([f"4,3965,1500000,-;{shown}\n"], BOOT, 1000.0)
    monkeypatch.setattr(health, "this_boot", lambda: ring)
    monkeypatch.setattr(health, "PSTORES", ())
    found = health.with_kept({"kernel": health.read_kernel_log(), "journal": health.kept_lines()})
    rows = [(row["boot"], row["text"], row["unix_s"]) for row in found["kernel"]]
    earlier = "00000000-0000-4000-8000-000000000009"
    assert rows == [(earlier, shown, 2.0), (BOOT, lost, 2.0), (BOOT, shown, 1001.5)]
    assert found["journal"] is None
    # it ends so where no line fits
    monkeypatch.setattr(health, "run", lambda *_: Done(1, "", ""))
    assert health.kept_lines() == []


@pytest.mark.parametrize(("script", "why"), [
    ("exec sleep 60", "journalctl did not answer in 3 s"),
    ("echo Compiled without pattern matching support >&2; exit 1", "Compiled without pattern"),
])  # fmt: skip
def test_a_journal_that_was_not_read_is_unknown_and_not_without_a_line(
    host: Host, script: str, why: str
) -> None:
    host.double("journalctl", f"#!/bin/sh\n# rigbook stand-in\n{script}\n")
    answer = host.call("health")
    seen = Health.model_validate({key: answer.get(key) for key in ("journal", "kernel")})
    assert isinstance(seen.journal, Unknown), seen
    assert seen.journal.unreadable.startswith("not looked for the kernel's lines of earlier boots")
    assert why in seen.journal.unreadable
    assert not isinstance(seen.kernel, Unknown), "this boot's ring was read"


def test_the_journal_is_asked_for_what_is_told_and_nothing_else() -> None:
    """A line that is asked for and not told takes the place of one of an earlier boot."""
    asked = re.compile(health._ASKED)
    assert all(asked.search(text) for text, *_ in SICK)
    assert not [line for line in HEALTHY if asked.search(line)]
    pattern = health._ASKED
    done = subprocess.run(["journalctl", "-q", "-g", pattern, "-n", "1"], capture_output=True)
    assert b"pattern" not in done.stderr, done.stderr


def test_a_panic_that_pstore_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7530").mkdir()
    words = "<6>[  1.0] usb\n<0>[228678.72] Kernel panic - not syncing: hung_task: blocked tasks\n"
    (tmp_path / "7530" / "dmesg.txt").write_text(words)
    (tmp_path / "other.txt").write_text(words)
    monkeypatch.setattr(health, "PSTORES", (str(tmp_path), "/absent"))
    (row,) = health._last_words()
    assert row["kind"] == "panic" and row["device"].endswith("7530/dmesg.txt")


def test_a_container_has_no_kernel_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "absent", tmp_path / "file"):
        monkeypatch.setattr(health, "KMSG", str(path))
        assert health.this_boot() == []
        (tmp_path / "file").write_text("x")


# GPUs, PCIe, counters, disks, driver and addresses, from recorded output and trees of sysfs.


@pytest.mark.parametrize(("old", "new", "code"), [
    ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "gpu-memory-errors"),
    ("<channel_repair_pending>No", "<channel_repair_pending>Yes", "gpu-memory-errors"),
    ("<tpc_repair_pending>No", "<tpc_repair_pending>Yes", "gpu-memory-errors"),
    ("<unrepairable_memory>No", "<unrepairable_memory>Yes", "gpu-memory-errors"),
    ("<remapped_row_failure>No", "<remapped_row_failure>Yes", "gpu-memory-errors"),
    ("<dram_uncorrectable>0", "<dram_uncorrectable>3", "gpu-memory-errors"),
    ("<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes", "gpu-memory-errors"),
    ("hw_slowdown>Not Active", "hw_slowdown>Active", "gpu-throttled"),
    ("<gpu_temp_tlimit>47 C", "<gpu_temp_tlimit>0 C", "gpu-hot"),
    ("<persistence_mode>Enabled", "<persistence_mode>Disabled", "persistence-off"),
    ("<gpu_recovery_action>None", "<gpu_recovery_action>Reboot", "gpu-lost"),
    ("<gpu_temp>40 C", "<gpu_temp>[GPU requires reset]", "gpu-lost"),
    ("<gpu_temp>40 C", "<gpu_temp>GPU is lost", "gpu-lost"),
    ("<replay_counter>0", "<replay_counter>9000000", "pcie-errors"),
])  # fmt: skip
def test_one_changed_element_of_the_h200_is_found(old: str, new: str, code: str) -> None:
    text = (FIXTURES / "idle_query.xml").read_text()
    assert old in text
    rows = gpus.parse(text.replace(old, new))
    assert found_with(Health.model_validate({"gpus": rows})) == [(code, "spark1")]


def test_a_lost_gpu_beside_one_that_answers() -> None:
    """Its neighbour has errors of its memory (NVIDIA/k8s-test-infra, qx-gb200-lost.xml)."""
    rows = gpus.parse((FIXTURES / "gb200_lost.xml").read_text())
    found = found_with(Health.model_validate({"gpus": rows}))
    assert found == [("gpu-lost", "spark1"), ("gpu-memory-errors", "spark1")]
    old = "<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>"
    (row,) = gpus.parse(f"<nvidia_smi_log><gpu id='x'>{old}</gpu></nvidia_smi_log>")
    assert row["recovery"] == "reset required"


def test_nvidia_smi_that_fails_or_prints_nonsense_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(gpus, "run", lambda *_: Done(15, "GPU is lost.  Reboot", ""))
    with pytest.raises(CannotRead, match="GPU is lost") as caught:
        gpus.gpu_health()
    assert gates_health.GONE.search(str(caught.value))
    # 14, and a warning behind the whole of it (nvidia-smi's manual, RETURN VALUE)
    text = (FIXTURES / "h100_query.xml").read_text()
    warned = f"{text}WARNING: infoROM is corrupted at gpu 0000:00:06.0\n"
    monkeypatch.setattr(gpus, "run", lambda *_: Done(14, warned, ""))
    assert gpus.gpu_health() == gpus.parse(text)
    monkeypatch.setattr(gpus, "run", lambda *_: Done(0, "not xml", ""))
    with pytest.raises(CannotRead, match="no XML"):
        gpus.gpu_health()
    monkeypatch.setattr(gpus, "which", lambda _: None)
    assert gpus.gpu_health() == []


def tree(root: Path, files: dict[str, str]) -> str:
    """A folder with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(root)


def test_links_of_cards_with_a_driver(tmp_path: Path) -> None:
    """The form of each file is Documentation/ABI/testing/sysfs-bus-pci; 255 is an unknown width."""
    devices = tmp_path / "devices"
    devices.mkdir()
    link = {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "2",
            "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "4"}  # fmt: skip
    files = {f"port/0000:01:00.0/{name}": text for name, text in link.items()} | {
        "port/0000:01:00.0/class": "0x010802",
        "port/0000:01:00.0/aer_dev_fatal": "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1",
        "port/0000:01:00.0/driver/x": "", "port/max_link_speed": "16.0 GT/s PCIe",
        "port/max_link_width": "255", "port/0000:02:00.0/class": "0x040300",
        "port/0000:03:00.0/class": "0x030000",
        # a virtual function of a vGPU host: bound to nvidia, and nvidia-smi lists none
        "port/0000:04:00.4/class": "0x030200", "port/0000:04:00.4/driver/x": "",
        "port/0000:04:00.4/physfn/x": "",
    }  # fmt: skip
    tree(tmp_path, files)
    for slot in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.4"):
        (devices / slot).symlink_to(tmp_path / "port" / slot)
    assert health.read_pci(str(tmp_path / "absent")) == []
    (row,) = health.read_pci(str(devices))
    assert (row["kind"], row["speed"], row["width"], row["card_width"]) == ("nvme", 16.0, 2, 4)
    assert (row["port_speed"], row["port_width"], row["errors"]) == (16.0, None, {"fatal": 1})


# counters of a healthy H100 node since its boot (leptonai/gpud, infiniband/class/testdata)
H100 = {"counters/link_downed": "0", "counters/symbol_error": "0",
        "hw_counters/rnr_nak_retry_err": "0", "hw_counters/roce_slow_restart": "0",
        "hw_counters/packet_seq_err": "12"}  # fmt: skip


def test_counters_are_differences_within_a_boot(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(health, "RDMA", str(tmp_path / "rdma"))
    monkeypatch.setattr(health, "NET", str(tmp_path / "net"))
    files = {f"mlx5_0/ports/1/{name}": value for name, value in H100.items()}
    tree(tmp_path / "rdma", files)
    tree(tmp_path / "net", {"eth0/carrier_changes": "3", "eth0/device/x": "",
                            "lo/carrier_changes": "9"})  # fmt: skip
    seen = health.counter_values(str(tmp_path / "rdma"), str(tmp_path / "net"))
    assert seen["mlx5_0/1 packet_seq_err"] == 12 and "lo carrier_changes" not in seen
    monkeypatch.setattr(health, "counter_values", lambda: dict(seen))
    assert health.read_counters()["grew"] == {}
    health.keep_counters()
    kept = json.loads(Path(health.counters_path()).read_text())
    Path(health.counters_path()).write_text(json.dumps({**kept, "unix_s": kept["unix_s"] - 60}))
    seen["mlx5_0/1 link_downed"] += 1
    found = health.read_counters()
    assert found["grew"] == {"mlx5_0/1 link_downed": 1} and 59 < found["seconds"] < 120
    # a reading of another boot, or an old one, says nothing; nor does a counter that began anew
    fewer = dict.fromkeys(seen, 0)
    for changes in (
        {"boot": "other", "values": fewer},
        {"unix_s": kept["unix_s"] - health.MAX_AGE_S - 1, "values": fewer},
        {"values": dict.fromkeys(seen, 99)},
    ):
        row = {**kept, "unix_s": kept["unix_s"] - 60, **changes}
        Path(health.counters_path()).write_text(json.dumps(row))
        assert health.read_counters()["grew"] == {}
    assert health.MAX_AGE_S <= 3600


def test_the_older_name_of_what_holds_a_clock() -> None:
    """Before driver 535: clocks_throttle_reasons."""
    text = (FIXTURES / "public" / "a10g.xml").read_text()
    old = "<clocks_throttle_reason_hw_slowdown>Not Active"
    assert old in text
    rows = gpus.parse(text.replace(old, old.replace("Not Active", "Active")))
    found = found_with(Health.model_validate({"gpus": rows}))
    assert ("gpu-throttled", "spark1") in found


# linux-nvme/nvme-cli 1037 (WD 2TB), v-zhuravlev/zbx-smartctl 129 (Intel), nasty-project/nasty
# PR 367 (smartctl's form), the newest nvme-cli's form
NVME = {"critical_warning": 0, "avail_spare": 100, "spare_thresh": 10, "percent_used": 3,
        "media_errors": 0, "num_err_log_entries": 1}  # fmt: skip
SMARTCTL = {"nvme_smart_health_information_log": {
    "critical_warning": 0, "available_spare": 100, "available_spare_threshold": 10,
    "percentage_used": 12, "media_errors": 0, "num_err_log_entries": 4804}}  # fmt: skip


@pytest.mark.parametrize(("document", "used"), [
    (NVME, 3), (SMARTCTL, 12), ({**NVME, "critical_warning": {"value": 0}}, 3),
])  # fmt: skip
def test_a_healthy_disk_by_each_tool(document: dict[str, Any], used: int) -> None:
    smart = health.parse_smart(json.dumps(document), "tool")
    assert smart is not None and smart["used_percent"] == used
    row = {"name": "nvme0", "model": "x", "state": "live", "smart": smart}
    assert found_with(Health.model_validate({"disks": [row]})) == []
    worn = {**row, "smart": {**smart, "media_errors": 1}}
    assert found_with(Health.model_validate({"disks": [worn]})) == [("disk-wear", "spark1")]


@pytest.mark.parametrize("text", ["", "nvme: command not found", "{}", '{"smart_status": {}}'])
def test_what_is_no_smart_log_is_none(text: str) -> None:
    assert health.parse_smart(text, "tool") is None


@pytest.mark.parametrize("tools", [("nvme",), ("smartctl",), ("nvme", "smartctl")])
def test_a_disk_whose_tool_is_late_is_unknown_and_not_without_one(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...]
) -> None:
    for tool in tools:
        host.double(tool, "#!/bin/sh\n# rigbook stand-in\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{host.bin}:/usr/bin:/bin")
    monkeypatch.setattr(health, "TIMEOUT_S", 0.2)
    tree(tmp_path, {"nvme/nvme0/state": "live"})
    rows = health.read_disks(str(tmp_path / "nvme"))
    late = "; ".join(f"{tool} did not answer in 0.2 s" for tool in tools)
    assert rows[0]["smart"] == {"unreadable": late}
    assert found_with(Health.model_validate({"disks": rows})) == [("health-unreadable", "spark1")]


# man 5 proc_pid_mountinfo; what errors=remount-ro leaves has ro in the filesystem's options alone,
# on Linux 6.15 and later emergency_ro (prometheus/node_exporter 3717)
@pytest.mark.parametrize(("line", "sick"), [
    ("28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro", False),
    ("29 28 7:1 / /snap/core/1 ro,nodev shared:2 - squashfs /dev/loop1 ro,errors=continue", False),
    ("30 28 8:1 / /mnt ro,relatime - ext4 /dev/sda1 ro", False),
    ("31 28 8:1 / /boot/efi rw,relatime - vfat /dev/sda1 rw", False),
    ("32 28 0:25 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755", False),
    ("33 28 0:25 / /data ro,relatime - btrfs /dev/sdb rw,space_cache", False),
    ("35 28 8:2 / /srv\\040x rw,relatime - ext4 /dev/sda2 rw,errors=remount-ro,emergency_ro", True),
    ("36 28 8:2 / /srv\\040x rw,relatime - ext4 /dev/sda2 rw,shutdown", True),
    ("34 28 8:2 / /srv\\040x rw,relatime - ext4 /dev/sda2 ro,errors=remount-ro", True),
])  # fmt: skip
def test_a_filesystem_that_turned_read_only(tmp_path: Path, line: str, sick: bool) -> None:
    (tmp_path / "mountinfo").write_text(line + "\n")
    assert health.turned_read_only(str(tmp_path / "mountinfo")) == (["/srv x"] if sick else [])


def test_the_driver_and_what_lies_beside_it(tmp_path: Path) -> None:
    words = ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
             "GCC version: 13")  # fmt: skip
    tree(tmp_path, {"version": words, "lib/libnvidia-ml.so.580.126.09": "", "cdi/nvidia.yaml":
                    "hostPath: /usr/lib/libcuda.so.570.86.15",
                    "cdi/other.yaml": "libamd.so.570.86.15"})  # fmt: skip
    (tmp_path / "lib" / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.126.09")
    found = gpus.read_driver(
        str(tmp_path / "version"), (str(tmp_path / "lib"),), (str(tmp_path / "cdi" / "*"),)
    )
    spec = str(tmp_path / "cdi" / "nvidia.yaml")
    assert found == {"module": "580.159.04", "libraries": ["580.126.09"],
                     "cdi": {spec: ["570.86.15"]}}  # fmt: skip
    health = Health.model_validate({"driver": found})
    assert {code for code, _ in found_with(health)} == {"driver-library", "cdi-stale"}
    assert gpus.read_driver("/absent", (), ())["module"] is None


def test_an_address_is_found_in_what_sets_it(tmp_path: Path) -> None:
    tree(tmp_path, {"netplan/50.yaml": "addresses: [10.0.0.1/24]", "lease": "ADDRESS=10.0.0.2",
                    "big": "10.0.0.3 " + "x" * health.MAX_BYTES})  # fmt: skip
    places = (str(tmp_path / "netplan"), str(tmp_path / "lease"), str(tmp_path / "big"), "/absent")
    found = health.read_addresses(places)
    assert found == {"10.0.0.1": [str(tmp_path / "netplan/50.yaml")],
                     "10.0.0.2": [str(tmp_path / "lease")]}  # fmt: skip


@pytest.mark.parametrize(("start", "found"), [("169.254.28.", []), ("10.9.0.", ["spark1"])])
def test_a_link_local_address_is_made_anew_at_each_boot(start: str, found: list[str]) -> None:
    """The automatic setup of NVIDIA's playbook for two Sparks has no address in any file."""
    made = plan({f"spark{n}": host(n, fabric_address=f"{start}{n}") for n in (1, 2)}, None, ROOT)
    seen = dict(rigs.healthy(made))
    files = {"127.0.0.53": ("/etc/systemd/resolved.conf",)}
    seen["spark1"] = rigs.put(seen["spark1"], "health.addresses", files)
    assert [v.node for v in gates_health.address_survives(made, seen)] == found


def test_a_part_that_fails_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._PARTS, "disks", lambda: 1 / 0)
    answer = health.health({})
    assert answer["disks"] == {"unreadable": "ZeroDivisionError: division by zero"}
    assert answer.pop("took_s") < 5
    assert Health.model_validate(answer).gpus is not None


@pytest.mark.parametrize(("looks", "found"), [
    ([{7: ("vllm", "a")}] * 99, [{"pid": 7, "name": "vllm"}]),
    ([{7: ("vllm", "a")}, {7: ("vllm", "b")}], []),  # it gave way meanwhile
    ([{7: ("vllm", "a")}, {}], []),
    ([{}], []),
])  # fmt: skip
def test_what_sleeps_without_giving_way_is_stuck(
    looks: list[dict[int, tuple[str, str]]], found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = iter(looks)
    monkeypatch.setattr(health, "_asleep", lambda: next(rest))
    monkeypatch.setattr(health, "_PARTS", {})
    monkeypatch.setattr(health, "STUCK_S", 0.3)
    started = time.monotonic()
    assert health.read_health() == {"stuck": found}
    assert (time.monotonic() - started >= 0.3) is bool(found)


def test_threads_of_the_kernel_are_never_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        pid: proc.Stat(pid, "x", state, ppid, 1, 1, 0)
        for pid, state, ppid in ((2, "D", 0), (3, "D", 2), (4, "S", 1), (5, "D", 1))
    }
    monkeypatch.setattr(health.proc, "pids", lambda: list(rows))
    monkeypatch.setattr(health.proc, "stat", rows.get)
    assert list(health._asleep()) == [5]


def without_gpus() -> Plan:
    """A plan whose recipe runs on processors."""
    plan = spark_plan()
    expect = plan.recipe.expect.model_copy(update={"needs_nvidia": False})
    return replace(plan, recipe=plan.recipe.model_copy(update={"expect": expect}))


def test_a_driver_without_a_gpu_is_told_where_one_is_needed() -> None:
    said = "nvidia-smi -q failed (6): No devices were found"
    health = Health.model_validate({"gpus": {"unreadable": said}})
    for made, found in ((spark_plan(), 2), (without_gpus(), 0)):
        seen = {n: rigs.put(s, "health", health) for n, s in rigs.serving(made).items()}
        assert len(gates_health.parts_known(made, seen)) == found


def test_a_recipe_without_gpus_is_not_asked_for_persistence() -> None:
    plan = without_gpus()
    rows = gpus.parse((FIXTURES / "public" / "a10g.xml").read_text())
    health = Health.model_validate({"gpus": rows})
    seen = {n: rigs.put(s, "health", health) for n, s in rigs.serving(plan).items()}
    assert gates_health.persistence(plan, seen) == []


def test_the_watch_tells_the_xids_that_nvidia_answers_with_a_reset() -> None:
    table = compatibility.load_xids(Path(__file__).parents[4])
    serious = {xid.code for xid in table.xids if xid.action in ("reset_gpu", "reboot")}
    assert serious == watch.XIDS
    row = {"kind": "xid", "number": 79, "device": "a", "text": "b"}
    assert watch.tells_of_kernel(row, []) and not watch.tells_of_kernel({**row, "number": 43}, [])
    disk = {**row, "kind": "disk", "device": "sda1"}
    for kind in ("disk", "filesystem"):
        row = {**disk, "kind": kind}
        assert watch.tells_of_kernel(row, ["sda"]) and not watch.tells_of_kernel(row, ["nvme0n1"])
    aer = {**row, "kind": "aer", "text": "PCIe Bus Error: severity=Uncorrectable (Fatal), type=x"}
    assert watch.tells_of_kernel(aer, [])
    assert not watch.tells_of_kernel(
        {**aer, "text": aer["text"].replace("(Fatal", "(Non-Fatal")}, []
    )
