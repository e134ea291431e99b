"""libvgpu: what it sends, in which order, what it refuses, and what a failing proof leads to."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from schema.snapshot import Unreadable
from tests.plans.support.scenario import (
    HEAD,
    Runs,
    Scenario,
    Table,
    data,
    done,
    each_row,
    failed,
    mapped,
    quiet,
    refused,
    said,
    scenario,
)
from tests.unit.builders import host_parts
from tests.unit.builders.host_parts import BASE, OTHER, candidate, file, library_look, swapped

SECRET = "T0P-S3CRET"


# One small file as our library.
CONTENT = b"\x7fELF as the stand-in host says"
MADE = tempfile.TemporaryDirectory()
PATH, OURS = Path(MADE.name, "libvgpu.so"), hashlib.sha256(CONTENT).hexdigest()
PATH.write_bytes(CONTENT)
WANT = (f"library={PATH}", f"sha256={OURS}")
GUARD = ("guard=true", f"webhook=http://127.0.0.1:1/{SECRET}")
FITS = candidate(sha256=OURS)
DONE = library_look(files=(file(sha256=OURS),), state=swapped(ours=OURS))
LOST = library_look(files=(file(sha256=OTHER),), state=swapped())
VERSIONS = library_look(files=(file(), file(f"{BASE}.v9")), mappers=())
DARK = library_look(mappers=Unreadable(unreadable="no permission"))


def run(
    *pairs: str, how: tuple[str, ...] = ("-y",), deploy: str = "libvgpu", first: Any = None,
    then: Any = DONE, fits: Any = FITS, fresh: Any = None, **more: Any,
) -> Scenario:  # fmt: skip
    """A run on a host that shows `first` and `then`, and to which the candidate looks so."""
    faults = {
        "says library look": [said(first or library_look()), said(then)],
        "says library check": [said(fits), fresh or mapped(OURS)],
        "says kube look": said(host_parts.kube_look()),
    }
    return scenario(f"deploys/{deploy}.py", *how, *data(*pairs), faults=faults, **more)


SWAP = "lab1 apply file+directory"
DRY = ("--dry", "--diff")
UNDONE = failed("ROLLED_BACK", steps=[SWAP, "lab1 undo"])
TABLE: Table = {
    "dry": (run(*WANT, *GUARD, how=DRY), quiet(*(f"[{HEAD}] {line}" for line in (
        f"{BASE} counts: the only one there",
        f"write {BASE} (mode 0755, owner root): {'a' * 64} becomes",
        "write /etc/rigbook/library.json (mode 0600, owner root)",
        "enable and start rigbook-library.path", "enable and start rigbook-library.timer",
        "keeps the former one until its restart: ai/lucebox-7d9 (pid 812)")), never=(SECRET,))),
    "swap": (run(*WANT, *GUARD), done(
        "a fresh process maps it", never=(SECRET,),
        steps=[f"{SWAP}+unit", "lab1 close COMMITTED"])),
    "webhook in a file": (run(*WANT, "guard=true", "reapply=true", "webhook_file=/root/hook"), done(
        "a fresh process maps it", steps=[f"{SWAP}+unit", "lab1 close COMMITTED"])),
    # without guard no unit is written
    "plain": (run(*WANT), done(steps=[SWAP, "lab1 close COMMITTED"])),
    # without its proof the swap is undone: overwritten in the same second, another file mapped
    "loses the race": (run(*WANT, then=library_look()), UNDONE),
    "old inode": (run(*WANT, fresh=mapped(OURS, 8)), UNDONE),
    "no data": (run(), refused("libvgpu needs --data library=FILE --data sha256=HEX")),
    "wrong hash": (run(WANT[0], f"sha256={'f' * 64}"), refused(
        "is not the library that sha256 names: it is")),
    "no file": (run("library=/nowhere/x.so", WANT[1]), refused(
        "library: /nowhere/x.so: No such file")),
    "unfit": (run(*WANT, fits=candidate(elf=host_parts.elf(machine="aarch64"))), refused(
        "libvgpu-candidate")),
    "small": (
        run(*WANT, fits=candidate(sha256=OURS, elf=host_parts.elf(exported=("cuInit",)))),
        refused("libvgpu-symbols")),
    "small waived": (
        run(*WANT, "waive=libvgpu-symbols", "reason=no pod calls them",
            fits=candidate(sha256=OURS, elf=host_parts.elf(exported=("cuInit",)))),
        done("waived libvgpu-symbols", "a fresh process maps it")),
    "other": (run(*WANT, first=LOST), refused("libvgpu-other")),
    # one that was waived counts as the original
    "other waived": (
        run(*WANT, "waive=libvgpu-other", "reason=looked at it", how=DRY, first=LOST),
        done("waived libvgpu-other", f"{OTHER} becomes")),
    "target": (run(*WANT, first=VERSIONS), refused("libvgpu-target")),
    "target named": (run(*WANT, f"target={BASE}.v9", how=DRY, first=VERSIONS), done(
        f"write {BASE}.v9")),
    "dark": (run(*WANT, first=DARK), refused("libvgpu-unreadable")),
    "nothing to remove": (run("remove=true"), quiet()),
    "remove": (run("remove=true", how=DRY, first=DONE), done(
        f"write {BASE}", "remove /etc/rigbook/library.json")),
    "remove other": (run("remove=true", first=LOST), refused(
        "is neither ours nor the original")),
    "bad key": (run("recipe=tiny"), refused("unknown key 'recipe'")),
    "injected": (run(*WANT, "without=a;id"), refused("is not a symbol's name")),
    "not this rig": (run(deploy="restart"), refused("is a Kubernetes rig")),
    "doctor": (run(deploy="doctor", first=DONE), quiet("is ours", "ai/lucebox-7d9 (pid 812)")),
    "doctor drift": (run(deploy="doctor", first=library_look(state=swapped())), refused(
        "1 finding(s) block", "libvgpu-drift")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_what_is_refused(ran: Runs) -> None:
    """A file that is not what the operator says it is never reaches a host."""
    TABLE["wrong hash"][1].check(ran["wrong hash"])


def test_a_swap_keeps_the_original_and_tries_the_new_one_first(ran: Runs) -> None:
    first = ran["swap"].changing[0].request["steps"][0]
    assert (first["path"], first["keep"], first["expect_sha256"]) == (BASE, True, "a" * 64)
    assert "LD_PRELOAD" in " ".join(first["validate"]) and "{tmp}" in first["validate"]
    assert all(SECRET not in command.raw for command in ran["swap"].commands)
