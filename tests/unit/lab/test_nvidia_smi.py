"""The stand-in against outputs of the real nvidia-smi (fixtures from an H200; table of a GB10)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = ROOT / "lab/files/nvidia-smi"
FIXTURES = ROOT / "tests/fixtures/nvidia-smi"
UUID = "GPU-d6cbe0ae-a1c5-8e94-ec2e-870e1d293431"
# no titles: an engine that a lab on this machine runs must not show in the tests
H200 = {"kind": "discrete", "driver": "580.159.04", "gpus": [{"uuid": UUID}], "titles": []}
GB10 = {"kind": "gb10", "driver": "580.95.05", "gpus": [{"uuid": UUID}], "titles": []}
Tool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def smi(tmp_path: Path) -> Tool:
    """Run the stand-in over a state."""

    def run(state: dict | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "gpu.json"
        if state is not None:
            path.write_text(json.dumps(state))
        return subprocess.run(
            [sys.executable, str(STAND_IN), *arguments],
            env={"RIGBOOK_LAB_GPU": str(path)},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def holder() -> Iterator[int]:
    """A live process that a state can name."""
    child = subprocess.Popen(["sleep", "60"])
    yield child.pid
    child.kill()
    child.wait()


def comparable(table: str) -> list[str]:
    """A table's lines without the date, and with what the weather decides blanked."""
    lines = [re.sub(r"\d+C ", "TTC ", line) for line in table.splitlines()[1:]]
    return [re.sub(r"\d+W /", "PPPW /", line) for line in lines]


def csv_fixture(label: str) -> list[tuple[str, str]]:
    """(comment, line) pairs of csv.txt whose comment holds the label."""
    lines = (FIXTURES / "csv.txt").read_text().splitlines()
    return [(a, b) for a, b in pairwise(lines) if a[:1] == "#" and label in a]


def test_it_is_labelled() -> None:
    assert (
        "# rigbook stand-in for nvidia-smi (no GPU here)" in STAND_IN.read_text().splitlines()[:3]
    )


def test_it_says_what_it_is(smi: Tool) -> None:
    done = smi(None, "--rigbook-stand-in")
    assert (done.returncode, done.stdout.strip()) == (
        0,
        "rigbook stand-in for nvidia-smi (no GPU here)",
    )
    assert "rigbook stand-in" in smi(GB10, "--version").stdout


def test_idle_table_is_the_real_one(smi: Tool) -> None:
    assert comparable(smi(H200).stdout) == comparable((FIXTURES / "idle_table.txt").read_text())


def test_busy_table_is_the_real_one(smi: Tool, holder: int) -> None:
    state = {**H200, "processes": [{"pid": holder, "name": "python3", "mib": 15970}]}
    printed = smi(state).stdout.replace(f"{holder:>15}", f"{407:>15}")
    assert comparable(printed) == comparable((FIXTURES / "busy_table.txt").read_text())


def test_gb10_table_is_the_real_one(smi: Tool) -> None:
    expected = (FIXTURES / "gb10_table.txt").read_text().splitlines()
    assert smi(GB10).stdout.splitlines()[1 : 1 + len(expected)] == expected


def test_query_gpu_is_the_real_line(smi: Tool) -> None:
    ((comment, line),) = csv_fixture("(idle)")
    query = comment.split()[1]
    assert smi(H200, query, "--format=csv,noheader,nounits").stdout.strip() == line


def test_query_compute_apps_is_the_real_line(smi: Tool, holder: int) -> None:
    ((_, line),) = csv_fixture("compute-apps")
    state = {**H200, "processes": [{"pid": holder, "name": "python3", "mib": 15970}]}
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    printed = smi(state, query, "--format=csv,noheader,nounits").stdout.strip()
    assert printed == line.replace(" 407,", f" {holder},")


def test_headers_and_units(smi: Tool) -> None:
    done = smi(H200, "--query-gpu=index,memory.total,power.draw", "--format=csv")
    assert done.stdout.splitlines() == [
        "index, memory.total [MiB], power.draw [W]",
        "0, 143771 MiB, 124.90 W",
    ]
    done = smi(H200, "--query-gpu=index,memory.total", "--format=csv,nounits")
    assert done.stdout.splitlines()[0] == "index, memory.total"


def test_gb10_reports_no_memory(smi: Tool) -> None:
    query = "--query-gpu=name,memory.total,memory.used,memory.free,compute_cap"
    done = smi(GB10, query, "--format=csv,noheader,nounits")
    assert done.stdout.strip() == "NVIDIA GB10, [N/A], [N/A], [N/A], 12.1"


def test_xml_elements_stand_as_in_the_real_one(smi: Tool, holder: int) -> None:
    real = ET.parse(FIXTURES / "idle_query.xml").getroot()
    state = {**H200, "processes": [{"pid": holder, "name": "a<b", "mib": 5}]}
    ours = ET.fromstring(smi(state, "-q", "-x").stdout)
    for path in ("driver_version", "cuda_version", "attached_gpus", "gpu/uuid",
                 "gpu/product_name", "gpu/fb_memory_usage/total"):  # fmt: skip
        assert ours.findtext(path) == real.findtext(path)
    order = [element.tag for element in real.find("gpu") or []]
    tags = [element.tag for element in ours.find("gpu") or []]
    assert tags == sorted(tags, key=order.index)
    assert ours.findtext("gpu/processes/process_info/pid") == str(holder)
    assert ours.findtext("gpu/processes/process_info/process_name") == "a<b"


def test_a_titled_engine_process_is_seen(smi: Tool) -> None:
    child = subprocess.Popen(["bash", "-c", "exec -a VLLM::Worker_TP0 sleep 60"])
    try:
        query = "--query-compute-apps=pid,process_name,used_memory"
        state = {key: value for key, value in GB10.items() if key != "titles"}
        expected = f"{child.pid}, VLLM::Worker_TP0, 77"
        for _ in range(50):
            done = smi({**state, "engine_mib": 77}, query, "--format=csv,noheader,nounits")
            if expected in done.stdout.splitlines():
                break
        assert expected in done.stdout.splitlines()
    finally:
        child.kill()
        child.wait()


def test_a_listed_process_that_died_is_gone(smi: Tool) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    state = {**H200, "processes": [{"pid": child.pid, "mib": 100}]}
    done = smi(state, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("state", [None, {**GB10, "fail": True}])
def test_no_driver_is_the_real_message(smi: Tool, state: dict | None) -> None:
    done = smi(state, "-L")
    assert done.returncode == 9
    assert done.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--query-gpu=nosuch", "--format=csv"], 2),
        (["--query-gpu=name"], 2),
        (["--nosuch"], 6),
    ],
)
def test_bad_arguments_fail(smi: Tool, arguments: list[str], code: int) -> None:
    assert smi(GB10, *arguments).returncode == code
