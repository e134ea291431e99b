"""`python -m tests.bench growth`: what a run that changes nothing costs as a rig grows.

On stand-in hosts: the operator's side alone, with pyinfra's whole command line. They answer at
once, and lie in the same process, so what is measured is what grows with the nodes here. Its
picture, docs/growth.svg, is drawn with the packages of requirements/report.txt.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from deploys.plans.report import INSTALL
from schema.load import plan
from tests.bench.rig import MB, SPREAD, Part, Row, in_seconds, machine, table, today
from tests.infra.plugin import ROOT
from tests.plans.support.doubles import EngineDouble, Reply, loopback
from tests.plans.support.fakehost import RECORD, SCENARIO, VARIABLE
from tests.plans.support.scenario import INVENTORY, host, serving
from tests.unit.builders.rigs import recipe_over

NODES = (2, 4, 8, 16, 64)
PICTURE = ROOT / "docs" / "growth.svg"
RUNS = ("serve", "doctor", "image", "weights")


@dataclass
class Figures:
    """Of one runbook on so many nodes: seconds, one entry a round; the most bytes of memory; the
    bytes and the commands that a host was sent."""

    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    sent: int = 0
    commands: int = 0


@contextmanager
def _rig(nodes: int) -> Iterator[Path]:
    """A folder with a rig of so many stand-in hosts that serves as its recipe says."""
    address = loopback()
    with tempfile.TemporaryDirectory(prefix="rigbook-growth-") as text:
        folder = Path(text)
        chosen = recipe_over(folder, "tiny", nodes)
        hosts = []
        for number in range(1, nodes + 1):
            more = {"lan_address": address if number == 1 else f"127.0.1.{number}"}
            data = host(number, address, **chosen, rank=number - 1, **more)
            hosts.append((f"@fake/lab{number}", data))
        snapshots = serving(plan(dict(hosts), None, ROOT))
        document = {
            "hosts": hosts,
            "snapshots": {name: seen.model_dump(mode="json") for name, seen in snapshots.items()},
            "faults": {},
        }
        (folder / SCENARIO).write_text(json.dumps(document))
        with EngineDouble(Reply, address, 8000, "vllm:up 1\n"):
            yield folder


def _run(folder: Path, runbook: str, figures: Figures) -> None:
    """One run; RuntimeError where it changed something or failed."""
    record = folder / RECORD
    record.unlink(missing_ok=True)
    words = [str(Path(sys.executable).parent / "pyinfra"), INVENTORY, f"deploys/{runbook}.py", "-y"]
    environ = {**os.environ, VARIABLE: str(folder), "XDG_STATE_HOME": str(folder),
               "PYINFRA_PROGRESS": "off"}  # fmt: skip
    began = time.monotonic()
    child = subprocess.Popen(
        words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    figures.seconds.append(time.monotonic() - began)
    if child.returncode != 0:
        raise RuntimeError(f"{runbook}: exit status {child.returncode}: {said[-800:]}")
    figures.memory = max(figures.memory, _bytes(usage))
    sent: dict[str, list[int]] = {}
    for line in record.read_text().splitlines():
        name, command, stdin = json.loads(line)
        sent.setdefault(name, []).append(len(command) + len(stdin or ""))
    figures.sent = max(sum(each) for each in sent.values())
    figures.commands = max(len(each) for each in sent.values())


def _bytes(usage: resource.struct_rusage) -> int:
    """The largest resident size; Linux tells it in kB."""
    return int(usage.ru_maxrss) * 1024


def measured(rounds: int) -> dict[int, dict[str, Figures]]:
    """All figures by the number of nodes and the runbook."""
    found: dict[int, dict[str, Figures]] = {}
    for nodes in NODES:
        print(f"{nodes} nodes", flush=True)
        found[nodes] = {name: Figures() for name in RUNS}
        with _rig(nodes) as folder:
            for _ in range(rounds):
                for name in RUNS:
                    _run(folder, name, found[nodes][name])
    return found


def rows(found: dict[int, dict[str, Figures]]) -> list[Row]:
    """The table, and what a node more costs."""
    listed = [
        Row(f"{name} that changes nothing, {nodes} nodes", in_seconds(figures.seconds))
        for name in RUNS
        for nodes in NODES
        for figures in [found[nodes][name]]
    ]
    least, most = NODES[0], NODES[-1]
    for name in RUNS:
        more = median(found[most][name].seconds) - median(found[least][name].seconds)
        each = more / (most - least)
        listed.append(Row(f"{name}: a node more", f"{1000 * each:.0f} ms"))
    for nodes in NODES:
        worst: Any = max(found[nodes].values(), key=lambda each: each.memory)
        commands = max(each.commands for each in found[nodes].values())
        sent = max(each.sent for each in found[nodes].values())
        listed.append(Row(
            f"operator's memory, {nodes} nodes (commands a host, bytes to it)",
            f"{worst.memory / MB:.0f} MB ({commands}, {sent / 1000:.0f} kB)",
        ))  # fmt: skip
    return listed


def chart(found: dict[int, dict[str, Figures]]) -> dict[str, Any]:
    """The seconds against the nodes as Vega-Lite: a line a runbook, with the range of its rounds.

    The series differ by mark and by dash too.
    """
    values = [
        {"runbook": name, "nodes": nodes, "s": median(each), "low": min(each), "high": max(each)}
        for nodes, runs in found.items()
        for name, figures in runs.items()
        for each in [figures.seconds]
    ]
    seconds = {"field": "s", "type": "quantitative", "title": "wall, s", "scale": {"zero": True}}
    series = {
        "field": "runbook",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(RUNS)},
        "legend": {"title": None, "symbolSize": 90},
    }
    nodes = {"field": "nodes", "type": "quantitative", "title": "nodes",
             "scale": {"type": "log", "base": 2}, "axis": {"values": list(NODES)}}  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white", "width": 460, "height": 260, "data": {"values": values},
        "encoding": {"x": nodes, "color": series},
        "layer": [
            {"mark": "line", "encoding": {"y": seconds, "strokeDash": {**series, "legend": None}}},
            {"mark": "rule", "encoding": {"y": {**seconds, "field": "low"},
                                          "y2": {"field": "high"}}},
            {"mark": {"type": "point", "filled": True, "size": 60},
             "encoding": {"y": seconds, "shape": series}},
        ],
        "config": {"font": "sans-serif"},
    }  # fmt: skip


def part(rounds: int) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when it was not measured."""
    try:
        import vl_convert
    except ImportError:
        raise RuntimeError(f"its picture is not drawn: {INSTALL}") from None
    where = machine()
    found = measured(rounds)
    PICTURE.write_text(vl_convert.vegalite_to_svg(chart(found)) + "\n")
    listed = rows(found)
    text = f"""Measured {today()} on {where}: stand-in hosts that serve as
their recipe says and answer at once. {rounds} rounds. Run again: `python -m tests.bench growth`.

![Seconds against nodes, a line a runbook; the table has the same figures]({PICTURE.name})

{table(listed)}
{SPREAD}

- Only the operator's side: pyinfra's command line with all imports, gates over all nodes, the
  words. What the nodes do, and the network, is not in it; on a real rig they work at the same time.
- What moves between nodes does not come here: no byte of an image or of weights passes the
  operator's machine while the fabric is there.
"""
    return Part("As a rig grows", text, listed)
