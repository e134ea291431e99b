"""The module step: out and blocked, loaded and checked, held, killed in between, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.change import apply as change_apply
from node.change import journal, undo
from node.core import proc
from node.core.errors import NodeError
from node.core.run import Done
from node.driver import loaded
from tests.unit.node.support.host import Host, change

OLD, NEW = "580.126.09", "580.142"
PARTS = {"nvidia": ["nvidia_modeset", "nvidia_uvm"], "nvidia_modeset": ["nvidia_drm"],
         "nvidia_drm": [], "nvidia_uvm": []}  # fmt: skip


class Kernel:
    """Stand-in for the kernel's modules: /sys/module as folders, rmmod and modprobe on them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys, self.on_disk, self.held = root / "sys", OLD, ""
        self.refuses = ""
        self.block = root / "modprobe.d/zz.conf"
        self.block.parent.mkdir()
        self.sys.mkdir()
        self.ran: list[str] = []
        self.release = "6.17.0-22-generic"
        monkeypatch.setattr(loaded, "SYS", str(self.sys))
        monkeypatch.setattr(loaded, "BLOCK", str(self.block))
        monkeypatch.setattr(loaded, "_try", self.command)
        monkeypatch.setattr(loaded, "running_daemons", lambda: ["nvidia-persistenced.service"])
        monkeypatch.setattr("node.core.systemctl.end", lambda unit: self.ran.append(f"end {unit}"))
        monkeypatch.setattr(loaded, "_restarted", self.restarted)
        monkeypatch.setattr(loaded, "users", lambda _: [])
        monkeypatch.setattr("platform.release", lambda: self.release)
        for name in ("nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm"):
            self.add(name, OLD)

    def restarted(self, unit: str) -> bool:
        self.ran.append(f"start {unit}")
        return True

    def add(self, name: str, version: str) -> None:
        folder = self.sys / name
        (folder / "holders").mkdir(parents=True, exist_ok=True)
        (folder / "version").write_text(version + "\n")
        (folder / "refcnt").write_text("1\n")
        for base, users in PARTS.items():
            if name in users:
                (self.sys / base / "holders" / name).touch()

    def command(self, program: str, name: str) -> Done:
        self.ran.append(f"{program} {name}")
        if program == "modprobe":
            assert not self.block.exists()
            if self.refuses:
                return Done(1, "", self.refuses)
            self.add(name, self.on_disk)
            return Done(0, "", "")
        if name == self.held or any((self.sys / name / "holders").iterdir()):
            return Done(1, "", f"rmmod: ERROR: Module {name} is in use")
        for path in (self.sys / name).rglob("*"):
            if path.is_file():
                path.unlink()
        (self.sys / name / "holders").rmdir()
        (self.sys / name).rmdir()
        for base in PARTS:
            (self.sys / base / "holders" / name).unlink(missing_ok=True)
        return Done(0, "", "")

    def names(self) -> dict[str, str]:
        return {p.name: (p / "version").read_text().strip() for p in self.sys.iterdir()}

    def reboots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another boot: a module that is blocked is not loaded."""
        self.held, boot = "", f"boot after {proc.boot_id()}"
        for name in ("nvidia_drm", "nvidia_uvm", "nvidia_modeset", "nvidia"):
            if name in self.names():
                self.command("rmmod", name)
        monkeypatch.setattr(proc, "boot_id", lambda: boot)


@pytest.fixture
def kernel(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def step(loaded_: bool, version: str | None = None, **more: Any) -> dict[str, Any]:
    return {"op": "module", "module": "nvidia", "loaded": loaded_, "version": version, **more}


def run(*steps: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = change_apply.apply({"change": change(), "steps": list(steps)})
    return answer


def test_out_in_and_back(kernel: Kernel) -> None:
    run(step(False))
    assert kernel.names() == {} and kernel.block.exists()
    assert kernel.ran[:3] == ["end nvidia-persistenced.service", "rmmod nvidia_uvm",
                              "rmmod nvidia_drm"]  # fmt: skip
    assert not run(step(False))["changed"]
    kernel.on_disk = NEW
    run(step(True, NEW))
    assert set(kernel.names().values()) == {NEW} and len(kernel.names()) == 4
    assert not kernel.block.exists() and kernel.ran[-1] == "start nvidia-persistenced.service"
    assert not run(step(True, NEW))["changed"]
    kernel.on_disk = OLD
    assert undo.undo({"change": str(change()["id"])})["status"] == "ROLLED_BACK"
    assert set(kernel.names().values()) == {OLD} and len(kernel.names()) == 4
    assert not kernel.block.exists()


@pytest.mark.parametrize(("what", "says"), [
    ({"refuses": "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"},
     "Key was rejected"),
    ({"on_disk": "580.130"}, "the loaded nvidia module is 580.130, not 580.142"),
])  # fmt: skip
def test_one_that_does_not_load_is_blocked_again(
    kernel: Kernel, what: dict[str, str], says: str
) -> None:
    run(step(False))
    for key, value in what.items():
        setattr(kernel, key, value)
    with pytest.raises(NodeError, match=f"{says}.*nothing was changed"):
        run(step(True, NEW))
    assert kernel.block.exists() and kernel.names() == {}
    kernel.on_disk, kernel.refuses = OLD, ""
    undo.undo({"change": str(change()["id"])})
    assert set(kernel.names().values()) == {OLD}


def test_one_that_is_held_is_refused_and_stays(kernel: Kernel) -> None:
    kernel.held = "nvidia_drm"
    with pytest.raises(NodeError, match=r"nvidia_drm cannot be unloaded.*nothing was changed"):
        run(step(False))
    assert set(kernel.names().values()) == {OLD} and not kernel.block.exists()


def test_the_console_holds_it_and_one_boot_unloads_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.held = "nvidia_drm"
    (answer,) = run(step(False, may_boot=True))["steps"]
    assert "goes with the next boot" in answer["detail"] and kernel.block.exists()
    kernel.reboots(monkeypatch)
    kernel.on_disk = NEW
    run(step(True, NEW))
    # the console has the new one, too: the way back blocks it, and waits for one boot
    kernel.held, kernel.on_disk = "nvidia_drm", OLD
    with pytest.raises(NodeError, match="held by the kernel itself"):
        undo.undo({"change": str(change()["id"])})
    found = journal.get(str(change()["id"]))
    assert found["status"] == "INCONSISTENT" and kernel.block.exists()
    assert any(row.get("boot") == proc.boot_id() for row in found["steps"])
    kernel.reboots(monkeypatch)
    assert undo.undo({"change": str(change()["id"])})["status"] == "ROLLED_BACK"
    assert kernel.names()["nvidia"] == OLD and not kernel.block.exists()


def test_a_boot_in_the_middle_loads_nothing_and_is_undone(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(step(False))
    kernel.reboots(monkeypatch)
    assert kernel.names() == {}
    assert undo.undo({"change": str(change()["id"])})["status"] == "ROLLED_BACK"
    assert kernel.names()["nvidia"] == OLD


def test_on_another_kernel_nothing_is_loaded_and_it_is_told(kernel: Kernel) -> None:
    run(step(False))
    kernel.release = "6.17.0-23-generic"
    told = undo.undo({"change": str(change()["id"])})
    assert told["status"] == "ROLLED_BACK" and kernel.names() == {}
    assert "loads with 6.17.0-22-generic" in json.dumps(told["left"])
    assert not kernel.block.exists()


def test_a_kill_is_found_out_by_what_is_there(kernel: Kernel) -> None:
    run(step(False))
    found = journal.get(str(change()["id"]))
    found["steps"][0]["state"] = "intent"
    journal.save(found)
    run(step(False))
    assert journal.get(str(change()["id"]))["steps"][0]["state"] == "done"
