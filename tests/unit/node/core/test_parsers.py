"""What other programs print, read: nvidia-smi, systemctl show, /proc, bonding, secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.core import masking, proc
from node.core.errors import CannotRead
from node.core.run import Done
from node.snapshot import gpus, memory, network, ports, processes, units

FIXTURES = Path(__file__).parent / "fixtures"


def rows(name: str, cells: int) -> str:
    """The lines of a fixture that have this many cells (the H200's query had 14: cut to ours)."""
    lines = (FIXTURES / name).read_text().splitlines()
    kept = [line.split(", ") for line in lines if line and not line.startswith("#")]
    return "\n".join(", ".join(line[:9]) for line in kept if (len(line) >= 9) == (cells == 9))


def test_h200() -> None:
    idle, busy = gpus.parse_gpus(rows("nvidia-smi-h200.txt", 9))
    assert (idle["memory_total_mib"], idle["memory_used_mib"], idle["memory_free_mib"]) == (
        143771, 0, 143156)  # fmt: skip
    assert busy["memory_used_mib"] == 15979 and busy["name"] == "NVIDIA H200"
    assert (busy["driver_version"], busy["compute_cap"]) == ("580.159.04", "9.0")
    app = gpus.parse_apps("GPU-d6cbe0ae, 4194305, /opt/a, b/python3, 15970")[0]
    assert (app["pid"], app["process_name"], app["used_mib"]) == (
        4194305, "/opt/a, b/python3", 15970)  # fmt: skip
    assert app["start_ticks"] is None and app["container_id"] is None


def test_gb10_reports_no_memory_but_its_processes() -> None:
    gpu = gpus.parse_gpus(rows("nvidia-smi-gb10.txt", 9))[0]
    assert [gpu[f"memory_{key}_mib"] for key in ("total", "used", "free")] == [None, None, None]
    assert (gpu["name"], gpu["compute_cap"]) == ("NVIDIA GB10", "12.1")
    app = gpus.parse_apps(rows("nvidia-smi-gb10.txt", 4))[0]
    assert (app["process_name"], app["used_mib"]) == ("VLLM::EngineCore", 97280)


@pytest.mark.parametrize(("value", "wanted"), [
    ("[N/A]", None), ("Not Supported", None), ("[Not Supported]", None), ("0", 0), ("12", 12),
])  # fmt: skip
def test_not_reported_is_a_value(value: str, wanted: int | None) -> None:
    assert gpus.mib(value) == wanted


@pytest.mark.parametrize("value", ["[GPU requires reset]", "[Unknown Error]", "ERR!", "much"])
def test_a_fault_is_not_a_value(value: str) -> None:
    with pytest.raises(CannotRead, match="nvidia-smi"):
        gpus.mib(value)


@pytest.mark.parametrize("text", ["0, GPU-1, NVIDIA", "No devices were found", "a,b,c,d,e,f"])
def test_an_unknown_line_is_unreadable(text: str) -> None:
    with pytest.raises(CannotRead, match="unknown line"):
        gpus.parse_gpus(text)


GHOST = "{ path=/no/such ; argv[]=/no/such ; ignore_errors=no }"


def test_systemctl_show() -> None:
    text = (
        "Id=a.service\nLoadState=loaded\nActiveState=active\nMainPID=7\nNRestarts=2\n"
        "ExecStart={ path=/bin/sh ; argv[]=/bin/sh -c x ; ignore_errors=no ; start_time=[n/a] }\n"
        "DropInPaths=/a.conf /b.conf\nNeedDaemonReload=yes\nExecMainStatus=203\n\n"
        "Id=b.service\nLoadState=not-found\nActiveState=inactive\nMainPID=0\n"
    )
    first, second = units.blocks(text)
    row = units.unit("a.service", first)
    assert (row["exec_start"], row["exec_start_exists"]) == (["/bin/sh", "-c", "x"], True)
    assert (row["main_pid"], row["restarts"], row["exit_status"]) == (7, 2, 203)
    assert row["drop_ins"] == ["/a.conf", "/b.conf"] and row["needs_reload"] is True
    other = units.unit("b.service", second)
    assert (other["load_state"], other["exec_start_exists"]) == ("not-found", None)
    ghost = units.unit("g", {"ExecStart": [GHOST]})
    assert ghost["exec_start_exists"] is False
    assert ghost["ghosts"] == [{"step": "ExecStart", "path": "/no/such", "container": None}]


def test_an_answer_about_fewer_units_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one unit's state would be told as another's."""
    done = Done(0, "Id=b.service\nActiveState=active\n", "")
    monkeypatch.setattr(units, "run", lambda *_: done)
    assert len(units.show(["b.service"])) == 1
    with pytest.raises(CannotRead, match="systemctl show"):
        units.show(["a.service", "b.service"])


def test_shared_memory_is_no_page_cache_that_could_be_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {"MemTotal": 9000, "MemFree": 100, "MemAvailable": 700, "Shmem": 300, "Cached": 1000,
            "Buffers": 50, "Dirty": 7, "SwapTotal": 0, "SwapFree": 0}  # fmt: skip
    text = "".join(f"{name}: {kib} kB\n" for name, kib in rows.items())
    monkeypatch.setattr(proc, "read_text", lambda path: text)
    seen = memory.read()
    assert (seen["page_cache"], seen["shmem"]) == (750 * 1024, 300 * 1024)


def test_bond_slaves() -> None:
    text = ("MII Status: up\n\nSlave Interface: enp1s0f0\nMII Status: up\n\n"
            "Slave Interface: enp1s0f1\nMII Status: down\n")  # fmt: skip
    assert network.bond_slaves_down(text) == ("enp1s0f1",)


def test_links() -> None:
    rows = [
        {"ifname": "bond0", "flags": ["LOWER_UP"], "mtu": 9000, "operstate": "UP",
         "linkinfo": {"info_kind": "bond"}, "address": "00:11:22:33:44:55",
         "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}]},
        {"ifname": "enx", "flags": [], "mtu": 1500, "operstate": "DOWN", "master": "bond0"},
    ]  # fmt: skip
    bond, slave = network.links(rows)
    assert (bond["kind"], bond["slaves"], bond["addresses"]) == ("bond", ["enx"], ["10.0.0.1/24"])
    assert (bond["carrier"], slave["carrier"], slave["master"]) == (True, False, "bond0")


def test_listening_ports() -> None:
    head = "  sl  local_address rem_address   st ...\n"
    row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1\n"
    established = row.replace(" 0A ", " 01 ")
    assert ports.listening(head + row + established) == [("127.0.0.1", 8080, 77)]
    assert ports.address("00000000000000000000000001000000") == "::1"


@pytest.mark.parametrize(("path", "unit", "container"), [
    ("/system.slice/vllm.service", "vllm.service", None),
    ("/system.slice/docker-" + "a" * 64 + ".scope", None, "a" * 64),
    ("/docker/" + "b" * 64, None, "b" * 64),
    ("/kubepods.slice/pod1.slice/cri-containerd-" + "c" * 64 + ".scope", None, "c" * 64),
    ("/user.slice/user-1000.slice/session-3.scope", None, None),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/e.service",
     "user@1000.service", None),
    ("/user.slice/user-1000.slice/user@1000.service/docker-" + "d" * 64 + ".scope",
     "user@1000.service", None),
    ("/system.slice/own.service/x;curl evil.service/docker-" + "d" * 64 + ".scope",
     "own.service", None),
    ("/init.scope", None, None), ("", None, None),
])  # fmt: skip
def test_supervisors(path: str, unit: str | None, container: str | None) -> None:
    assert (proc.unit_of(path), proc.container_of(path)) == (unit, container)


@pytest.mark.parametrize(("argv", "wanted"), [
    (["VLLM::EngineCore"], True), (["VLLM::Worker_TP0_EP1"], True),
    (["/v/bin/python3", "/v/bin/vllm", "serve", "m"], True), (["vllm", "serve", "m"], True),
    (["python3.12", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server"], True),
    (["python", "-m", "vllm.entrypoints.cli.main", "serve"], True),
    (["python", "/x/vllm/entrypoints/openai/api_server.py"], True),
    (["bash", "-c", "vllm serve m"], False), (["docker", "run", "i", "vllm", "serve"], False),
    (["/sbin/docker-init", "--", "vllm", "serve"], False), (["pgrep", "-f", "VLLM::"], False),
    (["python", "-c", "x", "vllm"], False), (["vim", "vllm"], False), ([], False),
    (["python", "-m", "vllmx"], False), (["grep", "VLLM::Worker"], False),
])  # fmt: skip
def test_what_is_an_engine(argv: list[str], wanted: bool) -> None:
    assert processes.is_engine(argv) is wanted


def test_a_kernels_command_line_tells_no_secret() -> None:
    line = "ro  kho=off systemd.set_credential=a:b nfs.password=x rd.luks.key=/k root=UUID=1-2"
    assert masking.masked_cmdline(line) == (
        "ro kho=off systemd.set_credential=*** nfs.password=*** rd.luks.key=*** root=UUID=1-2"
    )


def test_secrets_stay() -> None:
    environ = {"HF_TOKEN": "t", "VLLM_API_KEY": "k", "VLLM_X": "1", "PATH": "/", "AWS_SECRET": "s"}
    seen = masking.watched_environ(environ)
    assert seen == {"HF_TOKEN": "***", "VLLM_API_KEY": "***", "VLLM_X": "1"}
    argv = ["serve", "--api-key", "a", "b", "--port", "1", "--api-key=c", "--hf-token", "d",
            "--tokenizer", "e", "--max-num-batched-tokens", "5"]  # fmt: skip
    assert masking.masked_argv(argv) == (
        "serve", "--api-key", "***", "***", "--port", "1", "--api-key=***", "--hf-token", "***",
        "--tokenizer", "e", "--max-num-batched-tokens", "5")  # fmt: skip


def test_a_private_file_is_told_only_as_an_environment_file() -> None:
    text = "# c\nVLLM_X=1\n\nHF_TOKEN=t\n"
    assert masking.masked_env_file(text) == "# c\nVLLM_X=1\n\nHF_TOKEN=***\n"
    assert masking.masked_env_file("hunter2\n") is None
    assert masking.masked_env_file("-----BEGIN KEY-----\nabc=\n") is None
