"""Power cuts: whatever was not synced is lost, in any order (the model: disk.py).

Each verb runs once for real; every disk that a cut may leave is laid out, and the program is asked
to mend it. Nothing may be lost, and nothing said that is not so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from node.backup.listing import list_all
from node.backup.verify import verify
from node.change import apply
from node.transfer import manifest
from node.venv import versions
from tests.unit.node.change.test_tree_step import Steps, files, lies, trees
from tests.unit.node.crash.disk import Sync
from tests.unit.node.crash.recorded import Lied, Lost, Run, cut, journal, undone
from tests.unit.node.kernel.test_grub_step import NEW as test_grub_step_NEW
from tests.unit.node.kernel.test_grub_step import OLD as test_grub_step_OLD
from tests.unit.node.kernel.test_grub_step import Grub, lead, pin
from tests.unit.node.support import trees as support_trees
from tests.unit.node.support.host import Host, Show, apply_request, change, file_step, unit_step
from tests.unit.node.support.libs import library
from tests.unit.node.support.transfers import content
from tests.unit.node.support.trees import Engine, picture
from tests.unit.node.vgpu.test_vgpu import swap_step
from tests.unit.node.weights.test_weights import GOOD, reset, switch
from tests.unit.node.weights.test_weights import NEW as test_weights_NEW

Make = Callable[[Host], Steps]


def told(steps: Steps) -> list[str]:
    """Paths whose row in the journal is not what lies there."""
    states = {row["path"]: row["state"] for found in journal() for row in found["steps"]}
    now, wrong = lies(steps.host), []
    for name in (Path(str(step["path"])).name for step in steps.steps):
        before, after = steps.old.get(name), steps.new.get(name)
        if now.get(name) not in (before, after):
            raise Lost(f"{name} is {now.get(name)}")
        state = states.get(str(steps.host.root / name))
        if (state == "done" and now.get(name) != after) or (
            state in (None, "undone") and now.get(name) != before
        ):
            wrong.append(f"the journal says {state} of {name}, which is {now.get(name)}")
    return wrong


def clean(steps: Steps) -> None:
    """Raises Lost where temp files lie about after the undo."""
    if steps.host.leftovers():
        raise Lost(f"left over: {steps.host.leftovers()}")


def an_apply(steps: Steps) -> Run:
    """The change is applied; undo takes it back from wherever it came to."""

    def check(answered: bool) -> str:
        if wrong := told(steps):
            raise Lied("; ".join(wrong))
        if answered and lies(steps.host) != steps.new:
            raise Lied(f"it answered, but there is {lies(steps.host)}")
        end = undone(steps.old, lambda: lies(steps.host))
        clean(steps)
        return end

    return Run(steps.host, "apply", apply_request(*steps.steps), steps.reset, check)


def an_undo(steps: Steps) -> Run:
    """The change is undone; a second undo finishes what the first began."""

    def check(answered: bool) -> str:
        status = journal()[0]["status"]
        if (answered or status == "ROLLED_BACK") and lies(steps.host) != steps.old:
            raise Lied(f"{status}, but there is {lies(steps.host)}")
        if answered and status != "ROLLED_BACK":
            raise Lied(f"it answered, but the change is {status}")
        undone(steps.old, lambda: lies(steps.host))
        clean(steps)
        return str(status)

    return Run(steps.host, "undo", {}, steps.applied, check)


def a_close(steps: Steps) -> Run:
    """The change is blessed; what is COMMITTED is new."""

    def check(answered: bool) -> str:
        status = journal()[0]["status"]
        if status != "COMMITTED" and answered:
            raise Lied(f"it answered, but the change is {status}")
        if lies(steps.host) != steps.new:
            raise Lost(f"{status}, and there is {lies(steps.host)}")
        return str(status)

    request = {"change": "change-1", "status": "COMMITTED"}
    return Run(steps.host, "close", request, steps.applied, check)


def units(host: Host) -> dict[str, str]:
    """What systemctl's stand-in keeps of the unit."""
    return {path.name: path.read_text() for path in (host.bin / "units").glob("engine.service.*")
            if path.suffix in (".active", ".enabled")}  # fmt: skip


def test_a_unit_with_its_file(host: Host, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd keeps its own state; the file and the journal may lose theirs."""
    states = host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    path = host.root / "engine.service"

    def reset() -> None:
        shutil.rmtree(host.state, ignore_errors=True)
        path.write_text("old")
        (states / "engine.service.active").write_text("inactive\n")
        (states / "engine.service.enabled").write_text("disabled\n")

    def seen() -> object:
        return path.read_text(), units(host)

    steps = [file_step(path, "new"), unit_step("start", enabled=True)]
    reset()
    old = seen()

    def check(answered: bool) -> str:
        text, unit = path.read_text(), units(host)
        if text not in ("old", "new"):
            raise Lost(f"the unit's file is {text!r}")
        is_up = unit["engine.service.active"] == "active\n"
        if text != "new" and (is_up or answered):
            raise Lied(f"the unit is up: {is_up}, answered: {answered}, and its file is old")
        return undone(old, seen)

    holds(Run(host, "apply", apply_request(*steps), reset, check), show, "apply of a unit")


def test_a_swap_of_a_library(host: Host, tmp_path: Path, show: Show) -> None:
    """As libvgpu.py swaps it: the former one is kept by name, and in the journal."""
    for name, size in (("original.so", 30_000), ("ours.so", 20_000)):
        library(tmp_path / name, size, size)
    path = host.root / "libvgpu.so"

    def reset() -> None:
        shutil.rmtree(host.state, ignore_errors=True)
        for there in host.root.glob("libvgpu*"):
            there.unlink()
        shutil.copy(tmp_path / "original.so", path)

    reset()
    old, new = path.read_bytes(), (tmp_path / "ours.so").read_bytes()
    step = swap_step(path, tmp_path / "ours.so")

    def check(answered: bool) -> str:
        now = path.read_bytes()
        if now not in (old, new) or (answered and now != new):
            raise Lost(f"the library has {len(now)} bytes; answered: {answered}")
        return undone(old, path.read_bytes)

    holds(Run(host, "apply", apply_request(step), reset, check), show, "swap of a library")


RUNS: dict[str, tuple[Callable[[Steps], Run], Make]] = {
    "apply of files": (an_apply, files),
    "apply of a tree and a link": (an_apply, trees),
    "undo of files": (an_undo, files),
    "undo of a tree and a link": (an_undo, trees),
    "close": (a_close, files),
}


def holds(run: Run, show: Show, name: str = "") -> None:
    """No disk that a cut may leave has lost something, and nothing is said that is not so."""
    table = cut(run)
    ends = ", ".join(f"{count} {end}" for end, count in sorted(table.ends.items()))
    show(f"TABLE power cut, {name or run.verb}: {table.states} disks ({ends}), "
         f"lost {len(table.lost)}, lied {len(table.lied)}")  # fmt: skip
    assert (table.lost, table.lied) == ([], [])
    assert table.states > 10


@pytest.mark.parametrize("name", RUNS)
def test_a_power_cut(host: Host, show: Show, name: str) -> None:
    run, make = RUNS[name]
    holds(run(make(host)), show, name)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_without_its_syncs_it_would_lose(host: Host, what: str) -> None:
    """The proof that these tests can fail: the same run with one kind of sync left out."""
    run = an_apply(files(host))
    run.without = lambda done: isinstance(done, Sync) and done.what == what
    table = cut(run)
    assert table.lost or table.lied


# Power cuts in a backup, a restore, an upgrade: a backup is whole or none, a tree old or new.

OLD, NEW = "0.27.0", "0.28.0"


def small(engine: Engine) -> None:
    """A tree of a few files: each of them is as good as a thousand."""
    for name in ("include", "lib64", "pyvenv.cfg"):
        path = engine.tree / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(True)
    (engine.package / "data.bin").write_bytes(b"x" * 5000)


def usable() -> list[str]:
    """The backups that the list calls whole. Raises Lied for one that is not."""
    found = [str(row["id"]) for row in list_all({})["backups"] if row["usable"]]
    for one in found:
        try:
            verify({"backup": one})
        except Exception as error:
            raise Lied(f"{one} is listed as usable, but {error}") from error
    return found


def test_a_backup(engine: Engine, show: Show) -> None:
    small(engine)

    def check(answered: bool) -> str:
        found = usable()
        if answered and not found:
            raise Lied("it answered, and there is no backup")
        return "whole" if found else "none"

    def reset() -> None:
        shutil.rmtree(engine.host.state, ignore_errors=True)

    holds(Run(engine.host, "tree backup", {"tree": str(engine.tree)}, reset, check), show)


def edit(engine: Engine, text: str) -> None:
    """A version's text, always of the same time."""
    (engine.tree / "version").write_text(text)
    os.utime(engine.tree / "version", (len(text), len(text)))


def test_a_restore(engine: Engine, show: Show) -> None:
    small(engine)
    edit(engine, "new")
    kept = engine.verified()
    new = picture(engine.tree)

    def reset() -> None:
        for name in ("journal", "blobs"):
            shutil.rmtree(engine.host.state / name, ignore_errors=True)
        for path in engine.tree.parent.iterdir():
            if path != engine.tree:
                shutil.rmtree(path)
        edit(engine, "older")

    reset()
    old = picture(engine.tree)

    def check(answered: bool) -> str:
        now = picture(engine.tree) if engine.tree.exists() else {}
        if now not in (old, new):
            mixed = [(p, now.get(p), new.get(p)) for p in new if now.get(p) != new[p]]
            raise Lost(f"the tree is a mix: {str(mixed[:2])[:300]}")
        if answered and now != new:
            raise Lied("it answered, but the old tree is there")
        usable()
        return undone(old, lambda: picture(engine.tree))

    request = {"change": change("restore-1", deploy="rollback"), "backup": kept}
    holds(Run(engine.host, "tree restore", request, reset, check), show)


def test_an_installed_version(host: Host, venv: Path, show: Show) -> None:
    """What `venv install` calls there runs after the cut; the next install mends the rest."""
    rig = support_trees.versions(host, venv, OLD)
    (host.root / "wheels").mkdir()
    support_trees.wheel(host.root / "wheels", NEW)
    folder = rig.tree.with_name("venvs") / NEW
    asked = {"venv": str(rig.tree), "package": "vllm", "version": NEW}
    args = ["--no-index", f"--find-links={host.root / 'wheels'}"]

    def reset() -> None:
        shutil.rmtree(host.state, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)

    def says() -> str:
        done = subprocess.run([folder / "bin" / "vllm"], capture_output=True, text=True)
        return done.stdout.strip() or done.stderr[-200:]

    def check(answered: bool) -> str:
        is_there = versions.inspect_versions(asked)["found"] is not None
        if (is_there or answered) and says() != f"stand-in vllm {NEW}":
            raise Lied(f"installed, answered: {is_there}, {answered}, but: {says()}")
        return "there" if is_there else "not there"

    holds(Run(host, "venv install", {**asked, "pip_args": args}, reset, check), show)


# Power cuts while a kernel is pinned, and while that is undone: it boots the old kernel or the
# pinned one, by files that are whole.

# its flush is a sync alone: the real one also freezes the file system of /boot
SCRIPT = """\
import os, sys
from pathlib import Path
from node.change import apply, transaction
from node.kernel import grub_step
from tests.unit.node.kernel.test_grub_step import Grub, lead, pin
lead(Grub(Path({root!r})), setattr)
grub_step.flush_boot = lambda folder: os.sync()
{verb}
"""
VERBS = {"pin": "apply.apply(pin())", "undo": "transaction.undo({})"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_pin(host: Host, show: Show, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    grub = Grub(host.root)
    lead(grub, monkeypatch.setattr)

    def reset() -> None:
        for folder in (host.state, grub.folder):
            shutil.rmtree(folder, ignore_errors=True)
        grub.make()
        if verb == "undo":
            apply.apply(pin())

    reset()
    before = grub.state() if verb == "pin" else None

    def check(answered: bool) -> str:
        journal()
        boots = grub.boots()
        if boots not in (
            (test_grub_step_NEW, test_grub_step_NEW),
            (test_grub_step_OLD, test_grub_step_OLD),
        ):
            raise Lost(f"it boots {boots}")
        wanted = (
            (test_grub_step_OLD, test_grub_step_OLD)
            if verb == "pin"
            else (test_grub_step_NEW, test_grub_step_NEW)
        )
        if answered and boots != wanted:
            raise Lied(f"it answered, but it boots {boots}")
        end = undone((test_grub_step_NEW, test_grub_step_NEW), grub.boots)
        if before is not None and grub.state() != before:
            raise Lied(f"undone, but the folder holds {sorted(grub.state())}")
        return end

    script = SCRIPT.format(root=str(host.root), verb=VERBS[verb])
    holds(Run(host, verb, {}, reset, check, script=script), show, f"{verb} of a kernel")


# Power cuts while a set of weights is switched, and while that is undone: the former set, the new
# one, or a mix that is marked as one, which prelaunch refuses.

SWITCH = """\
from pathlib import Path
from tests.unit.node.weights.test_weights import switch
switch(Path({folder!r}))
"""


def check_of(folder: Path, wanted: dict[str, bytes]) -> Callable[[bool], str]:
    """The judge of a disk: `wanted` is there once the verb has answered."""

    def check(answered: bool) -> str:
        journal()
        found = content(folder)
        if found not in (GOOD, test_weights_NEW) and manifest.incomplete(str(folder)) != "change-1":
            raise Lied(f"a mix without its mark: {found}")
        if answered and found != wanted:
            raise Lied(f"it answered, but there is {found}")
        for raw in found.values():
            if raw not in (*GOOD.values(), *test_weights_NEW.values()):
                raise Lost(f"a file is neither old nor new: {raw!r}")
        return undone(GOOD, lambda: content(folder))

    return check


@pytest.mark.parametrize("verb", ["switch", "undo"])
def test_a_set_of_weights(host: Host, show: Show, verb: str) -> None:
    folder = host.root / "weights"

    def before() -> None:
        reset(host, folder)
        if verb == "undo":
            switch(folder)

    run = Run(
        host, "undo", {}, before, check_of(folder, test_weights_NEW if verb == "switch" else GOOD)
    )
    if verb == "switch":
        run.script = SWITCH.format(folder=str(folder))
    holds(run, show, f"{verb} of a set of weights")
