"""Every step of an upgrade and of a rollback x {error, kill, hang}: old or new, never a mix.

The venvs, pip's packages and the program are real; systemctl is a stand-in. After each fault one
`rignode undo`, as deploys/rollback.py and a person at the console ask for, must settle it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.backup import listing
from node.venv import versions
from tests.unit.node.support import strace, trees
from tests.unit.node.support.host import Host, Show, apply_request, change, unit_step

OLD, NEW = "0.27.0", "0.28.0"
UNIT = "engine.service"
CHANGE = "20260530T065800Z-upgrade-1a2b"
# the stand-in's own faults, before it does anything: it fails, its caller is killed, it hangs
FAULTY = """\
#!/bin/sh
# rigbook stand-in: systemctl with faults
here=$(dirname "$0")/units
verb=$2
[ -e "$here/error-$verb" ] && { echo "Job failed." >&2; exit 1; }
[ -e "$here/kill-$verb" ] && { kill -9 $PPID; exit 1; }
[ -e "$here/hang-$verb" ] && exec sleep 60
exec "$(dirname "$0")/systemctl.real" "$@"
"""
# where each step is hit: a changing system call and which one, or a verb of systemctl
POINTS: dict[str, tuple[strace.Point, ...]] = {
    "backup": (("fsync", 1), ("fsync", 3)),
    "verify": (("fsync", 1),),
    "stop": (("fsync", 1), ("systemctl stop", 0), ("fsync", 4)),
    "switch": (("fsync", 1), ("symlinkat", 1), ("renameat,rename", 2), ("fsync", 4)),
    "start": (("fsync", 1), ("systemctl start", 0), ("fsync", 4)),
    "close": (("fsync", 1), ("fsync", 2)),
    "undo": (("fsync", 1), ("systemctl stop", 0), ("symlinkat", 1), ("systemctl start", 0)),
    "restore": (("mkdir", 1), ("renameat2", 1), ("fsync", 6)),
}
ORDER = ("backup", "verify", "stop", "switch", "start", "close")


class Rig:
    """A host with a venv of two versions behind a link, an engine's unit, and a verified backup."""

    def __init__(self, host: Host, source: Path, keep: Path) -> None:
        self.host, self.keep = host, keep
        self.link = trees.versions(host, source, OLD, NEW).tree
        self.versions = self.link.with_name("venvs")
        trees.install(self.versions / NEW, source.parent / "wheels", NEW)
        self.units = host.systemctl()
        (host.bin / "systemctl").rename(host.bin / "systemctl.real")
        host.double("systemctl", FAULTY)
        (self.units / f"{UNIT}.active").write_text("active\n")
        self.backup = host.call("tree backup", {"tree": str(self.link)})["backup"]
        host.call("tree verify", {"backup": self.backup})
        # an edit since: the upgrade's own backup has something to store
        (self.versions / OLD / "note").write_text("edited")
        subprocess.run(["cp", "-a", str(host.root), str(keep)], check=True)

    def reset(self) -> None:
        """All as at first, at the same paths."""
        shutil.rmtree(self.host.root)
        subprocess.run(["cp", "-a", str(self.keep), str(self.host.root)], check=True)

    def request(self, step: str) -> tuple[str, dict[str, Any]]:
        """A step's verb and request."""
        link = {"op": "link", "path": str(self.link), "target": str(self.versions / NEW)}
        applied = {"stop": unit_step("stop"), "start": unit_step("start"), "switch": link}
        if step in applied:
            return "apply", apply_request(applied[step], name=CHANGE)
        newest = str(listing.list_all({})["backups"][0]["id"])
        return {
            "backup": ("tree backup", {"tree": str(self.link)}),
            "verify": ("tree verify", {"backup": newest}),
            "close": ("close", {"change": CHANGE, "status": "COMMITTED", "reason": "serves"}),
            "undo": ("undo", {"change": CHANGE}),
            "restore": ("tree restore", {"change": change("20260530T070000Z-rollback-3c4d"),
                                         "backup": self.backup, "allow": ["older"]}),
        }[step]  # fmt: skip

    def do(self, *steps: str) -> None:
        """Steps without a fault."""
        for step in steps:
            assert self.host.call(*self.request(step))["ok"], step

    def hit(self, step: str, point: strace.Point, fault: str) -> bool:
        """A step with a fault; gives whether it did not get through."""
        verb, request = self.request(step)
        call, number = point
        asked = json.dumps(request)
        if number:
            log = self.keep.parent / "log"
            return strace.inject(self.host, verb, asked, fault, point, log).returncode != 0
        marker = self.units / f"{fault}-{call.split()[1]}"
        marker.touch()
        run = strace.hung if fault == "hang" else Host.run
        done = run(self.host, self.host.argv(verb, asked))
        marker.unlink()
        return done.returncode != 0

    def settle(self, step: str) -> str:
        """What rollback does, then what there is: "old" or "new", proven; fails for a mix."""
        self.host.call("undo", {})
        listed = self.host.call("journal", {})
        assert listed["broken"] == []
        status = {row["id"]: row["status"] for row in listed["changes"]}
        assert not {"OPEN", "INCONSISTENT"} & set(status.values()), status
        lies = self.link.resolve()
        version = lies.name
        done = subprocess.run([self.link / "bin" / "vllm"], capture_output=True, text=True)
        assert done.stdout.strip() == f"stand-in vllm {version}", (version, done)
        assert versions.installed_versions(str(lies), "vllm") == (version,)
        if status.get(CHANGE) == "COMMITTED":
            assert version == NEW or step == "undo"
        else:
            assert version == OLD, status
        active = (self.units / f"{UNIT}.active").read_text().strip()
        assert active == "active", active
        rows = listing.list_all({})["backups"]
        assert [row for row in rows if row["verified_unix_s"] and row["usable"]], rows
        return "new" if version == NEW else "old"


@pytest.fixture
def rig(host: Host, venv: Path, tmp_path: Path) -> Iterator[Rig]:
    """A rig, and a copy of it to begin each cell with."""
    yield Rig(host, venv, tmp_path / "keep")


def before(step: str) -> tuple[str, ...]:
    """The steps that come before one."""
    if step == "restore":
        return ()
    return ORDER[: ORDER.index("close" if step == "undo" else step)]


def test_every_step_and_every_fault_ends_old_or_new(rig: Rig, show: Show) -> None:
    cells: Counter[str] = Counter()
    lost: list[str] = []
    prepared: dict[str, Path] = {}
    for step, points in POINTS.items():
        rig.reset()
        rig.do(*before(step))
        prepared[step] = rig.keep.parent / f"at-{step}"
        subprocess.run(["cp", "-a", str(rig.host.root), str(prepared[step])], check=True)
        for point in points:
            for fault in strace.FAULTS:
                shutil.rmtree(rig.host.root)
                subprocess.run(["cp", "-a", prepared[step], rig.host.root], check=True)
                hit = rig.hit(step, point, fault)
                cells[f"{step:8} {fault:5} {'hit' if hit else 'got through'}"] += 1
                try:
                    end = rig.settle(step)
                except AssertionError as error:
                    lost.append(f"{step} {point} {fault}: {str(error)[:300]}")
                else:
                    cells[f"{step:8} {fault:5} ends {end}"] += 1
    total = sum(count for name, count in cells.items() if "ends" not in name)
    for name, count in sorted(cells.items()):
        show(f"TABLE {name}: {count}")
    show(f"TABLE {total} cells, {len(lost)} lost something")
    assert lost == []
    assert total == 3 * sum(map(len, POINTS.values()))
    assert sum(count for name, count in cells.items() if " hit" in name) >= total * 0.8
