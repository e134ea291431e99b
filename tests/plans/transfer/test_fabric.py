"""fabric tells what is cabled and measures each way by itself; beside an engine only when asked."""

from __future__ import annotations

import atexit
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.plans.support import scenario
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    data,
    each_row,
    failed,
    quiet,
    refused,
    serving,
)
from tests.unit.builders.host_parts import rdma_port
from tests.unit.builders.rigs import healthy, tiny

FABRIC = ("deploys/fabric.py", "-y")
MADE = TemporaryDirectory(prefix="rigbook-fabric-")
atexit.register(MADE.cleanup)
ON_RDMA = {"recipe": "rdma", "recipes_dir": [MADE.name], "hcas": "rocep1s0f0,roceP2p1s0f0"}
_TINY = tiny()
_TINY["env"]["NCCL_DEBUG"] = "INFO"
_TINY["expect"] |= {"needs_nvidia": True, "rdma": "wanted"}
_TINY["container"]["privileged"] = True
Path(MADE.name, "rdma.yaml").write_text(yaml.safe_dump(_TINY))
BARE = scenario.broken(healthy, *((name, "network.rdma", ()) for name in (HEAD, WORKER)))
TWIN = scenario.broken(healthy, (WORKER, "network.rdma.0",
                             rdma_port("roceP2p1s0f0", "169.254.1.1")))  # fmt: skip
LOOKS = ["rate receive", "rate send", "snapshot", "snapshot"]


def has(tool: bool, *sends: float | None, receives: float | None = None) -> dict[str, Any]:
    """Both nodes with or without ib_write_bw, and what the ends say."""
    look = {"ib_write_bw": tool}
    return {
        f"{HEAD}:says rate look": look,
        f"{WORKER}:says rate look": look,
        f"{HEAD}:says rate send": [{"gbit_s": rate} for rate in sends or (None,)],
        f"{WORKER}:says rate receive": {"gbit_s": receives},
    }


PAIR = f"[{HEAD} -> {WORKER}, "
TABLE = {
    # what is there, in words, and the one way
    "streams": (Scenario(FABRIC, healthy, faults=has(False, receives=34.14)), quiet(
        f"[{HEAD}] bond0: 10.0.0.1/24, MTU 9000, up, slaves enP2p1s0f0np0, enp1s0f0np0",
        f"[{HEAD}] rocep1s0f0 on enp1s0f0np0: ACTIVE, LinkUp, 200 Gbit/s; 10.0.0.1 (GID 3)",
        f"[{WORKER}] to {HEAD} 10.0.0.1 by bond0: 8972 bytes unfragmented through bond0",
        f"{PAIR}bond0] 34.1 Gbit/s (TCP, four streams, 5 s)", asks=LOOKS)),
    "no rdma": (Scenario(FABRIC, BARE, faults=has(False, receives=9.4)), quiet(
        f"[{HEAD}] no RDMA device: between nodes there is TCP alone", f"{PAIR}bond0] 9.4 Gbit/s")),
    # one rail at a time; a rail that is throttled is told with what mends it
    "perftest": (
        Scenario(FABRIC, healthy, data=ON_RDMA, faults=has(True, 92.9, 13.4)),
        quiet("200 Gbit/s; 10.0.0.1 (GID 3); NCCL takes it",
              f"{PAIR}roceP2p1s0f0] 92.9 Gbit/s (ib_write_bw, 5 s)",
              f"{PAIR}rocep1s0f0] 13.4 Gbit/s (ib_write_bw, 5 s)",
              f"{PAIR}rocep1s0f0] that is far below the port's 200 Gbit/s",
              "off for 60 s at the wall",
              "a reboot with the cable in place",
              never=(f"{PAIR}roceP2p1s0f0] that is far",))),
    # installed on one node only: streams
    "half a tool": (
        Scenario(FABRIC, healthy, data=ON_RDMA, faults=has(True, receives=30.0)
                 | {f"{WORKER}:says rate look": {"ib_write_bw": False}}),
        quiet(f"{PAIR}bond0] 30.0 Gbit/s (TCP", never=("rocep1s0f0] ",))),
    "serving": (Scenario(FABRIC, serving), quiet(
        f"not measured: an engine runs on {HEAD}, {WORKER}", "--data measure=true",
        asks=["snapshot", "snapshot"])),
    "beside it": (
        Scenario((*FABRIC, *data("measure=true")), serving, faults=has(False, receives=8.0)),
        quiet(f"{PAIR}bond0] 8.0 Gbit/s")),
    "not": (Scenario((*FABRIC, *data("measure=false")), healthy), quiet(
        f"[{HEAD}] bond0: 10.0.0.1/24", never=("Gbit/s (",), asks=["snapshot", "snapshot"])),
    "dry": (Scenario(("deploys/fabric.py", "--dry"), healthy), quiet(
        f"[{HEAD}] bond0: 10.0.0.1/24", asks=["snapshot", "snapshot"])),
    # the state is told, and what blocks; nothing is measured then
    "twin": (Scenario(FABRIC, TWIN, data=ON_RDMA), refused(
        "rdma-address", "roceP2p1s0f0", f"on {WORKER}")),
    "no way": (
        Scenario(FABRIC, healthy, faults={f"{HEAD}:rate send": {
            "error": "no way to 10.0.0.2:29680: timed out", "code": "no_peer",
            "remedy": "sudo nft list ruleset there"}} | {
                k: v for k, v in has(False, receives=None).items() if "send" not in k}),
        failed(f"{PAIR}bond0] not measured", "no way to 10.0.0.2:29680", "nft list ruleset",
               "the rate of 1 way(s) could not be had")),
    # what the engine's log says, where one runs
    "log": (
        Scenario(FABRIC, serving, data=ON_RDMA, faults={
            f"{name}:nccl": "   32 via NET/Socket\n" for name in (HEAD, WORKER)}),
        quiet(f"NCCL of {HEAD} uses TCP (NET/Socket), not RDMA")),
    "a port": (
        Scenario((*FABRIC, *data("port=80")), healthy), refused("port: is 80; allowed: 1024")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_each_end_has_its_own_address_device_and_row(ran: Runs) -> None:
    asked = {c.verb: c.request for c in ran["perftest"].commands if c.verb.startswith("rate ")}
    send, take = asked["rate send"], asked["rate receive"]
    assert send["to"] == take["listen"] == {"address": "10.0.0.2", "port": 29680, "device": "bond0"}
    assert take["peer"] == "10.0.0.1" and send["key"] == take["key"]
    assert send["rdma"] == take["rdma"] == {"device": "rocep1s0f0", "port": 1, "gid": 3}
    keys = {c.request["key"] for c in ran["perftest"].commands if c.verb == "rate send"}
    assert len(keys) == 2, "a key is for one measurement"
