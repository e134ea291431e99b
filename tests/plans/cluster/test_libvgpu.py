"""libvgpu: what it sends, in which order, what it refuses, and what a failing proof leads to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schema.observed.snapshot import Unreadable
from tests.plans.support.clusters import digest, mapped, said, scenario
from tests.plans.support.scenario import HEAD, Runs
from tests.unit.builders import kube_parts
from tests.unit.builders.library_parts import (
    BASE,
    OTHER,
    candidate,
    elf,
    file,
    look,
    mapper,
    swapped,
)

LIBVGPU = "deploys/libvgpu.py"
SECRET = "T0P-S3CRET"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All runs of this module, with one small file as our library."""
    path = tmp_path_factory.mktemp("library") / "libvgpu.so"
    path.write_bytes(b"\x7fELF as the stand-in host says")
    ours = digest(path)
    yield Runs(scenarios(path, ours))


def scenarios(path: Path, ours: str) -> dict[str, object]:
    """The runs by name."""
    want = ("--data", f"library={path}", "--data", f"sha256={ours}")
    hook = ("--data", f"webhook=http://127.0.0.1:1/{SECRET}")
    guard = ("--data", "guard=true", *hook)
    fits = candidate(sha256=ours)
    done = look(files=(file(sha256=ours),), state=swapped(ours=ours))

    def host(first: object = None, then: object = done, **more: object) -> dict[str, object]:
        return {
            "says library look": [said(first or look()), said(then)],
            "says library check": [said(fits), mapped(ours)],
            "says kube look": said(kube_parts.look()),
            **{key.replace("_", " "): value for key, value in more.items()},
        }

    unfit = candidate(elf=elf(machine="aarch64"))
    small = candidate(sha256=ours, elf=elf(exported=("cuInit",)))
    other = look(files=(file(sha256=OTHER),), state=swapped())
    versions = look(files=(file(), file(f"{BASE}.v9")), mappers=())
    dark = look(mappers=Unreadable(unreadable="no permission"))
    waived = ("--data", "waive=libvgpu-other", "--data", "reason=looked at it")
    return {
        "dry": scenario(LIBVGPU, "--dry", "--diff", *want, *guard, faults=host()),
        "swap": scenario(LIBVGPU, "-y", *want, *guard, faults=host()),
        "plain": scenario(LIBVGPU, "-y", *want, faults=host()),
        "loses the race": scenario(LIBVGPU, "-y", *want, faults=host(then=look())),
        "old inode": scenario(
            LIBVGPU, "-y", *want,
            faults={**host(), "says library check": [said(fits), mapped(ours, 8)]},
        ),
        "no data": scenario(LIBVGPU, "-y", faults=host()),
        "wrong hash": scenario(
            LIBVGPU, "-y", *want[:2], "--data", f"sha256={'f' * 64}", faults=host()
        ),
        "no file": scenario(
            LIBVGPU, "-y", "--data", "library=/nowhere/x.so", *want[2:], faults=host()
        ),
        "unfit": scenario(
            LIBVGPU, "-y", *want, faults={**host(), "says library check": [said(unfit)]}
        ),
        "small": scenario(
            LIBVGPU, "-y", *want, faults={**host(), "says library check": [said(small)]}
        ),
        "other": scenario(LIBVGPU, "-y", *want, faults=host(other)),
        "other waived": scenario(LIBVGPU, "--dry", *want, *waived, faults=host(other)),
        "target": scenario(LIBVGPU, "-y", *want, faults=host(versions)),
        "target named": scenario(
            LIBVGPU, "--dry", *want, "--data", f"target={BASE}.v9", faults=host(versions)
        ),
        "dark": scenario(LIBVGPU, "-y", *want, faults=host(dark)),
        "nothing to remove": scenario(LIBVGPU, "-y", "--data", "remove=true", faults=host()),
        "remove": scenario(LIBVGPU, "--dry", "--data", "remove=true", faults=host(done)),
        "remove other": scenario(LIBVGPU, "-y", "--data", "remove=true", faults=host(other)),
        "bad key": scenario(LIBVGPU, "-y", "--data", "recipe=tiny", faults=host()),
        "injected": scenario(LIBVGPU, "-y", *want, "--data", "without=a;id", faults=host()),
        "not this rig": scenario("deploys/restart.py", "-y", faults=host()),
        "doctor": scenario("deploys/doctor.py", "-y", faults=host(done)),
        "doctor drift": scenario(
            "deploys/doctor.py", "-y", faults=host(look(state=swapped()))
        ),
    }  # fmt: skip


def test_dry_says_everything_and_sends_nothing(ran: Runs) -> None:
    dry = ran["dry"]
    assert dry.status == 0 and dry.changing == (), dry.output
    for line in (
        f"{BASE} counts: the only one there",
        f"write {BASE} (mode 0755, owner root): {'a' * 64} becomes",
        "write /etc/rigbook/library.json (mode 0600, owner root)",
        "enable and start rigbook-library.path",
        "enable and start rigbook-library.timer",
        "keeps the former one until its restart: ai/lucebox-7d9 (pid 812)",
    ):
        assert f"[{HEAD}] {line}" in dry.stderr, (line, dry.output)
    assert SECRET not in dry.output


def test_swap_sends_one_change_and_blesses_it_by_a_fresh_process(ran: Runs) -> None:
    swap = ran["swap"]
    assert swap.status == 0, swap.output
    assert swap.steps == ["lab1 apply file+directory+unit", "lab1 close COMMITTED"]
    first = swap.changing[0].request["steps"][0]
    assert (first["path"], first["keep"], first["expect_sha256"]) == (BASE, True, "a" * 64)
    assert "LD_PRELOAD" in " ".join(first["validate"]) and "{tmp}" in first["validate"]
    assert SECRET not in swap.output and "a fresh process maps it" in swap.output
    assert all(SECRET not in command.raw for command in swap.commands)


def test_without_guard_no_unit_is_written(ran: Runs) -> None:
    assert ran["plain"].steps == ["lab1 apply file+directory", "lab1 close COMMITTED"]


@pytest.mark.parametrize("name", ["loses the race", "old inode"])
def test_without_its_proof_the_swap_is_undone(ran: Runs, name: str) -> None:
    """Overwritten in the same second, or another file mapped: back to what was there."""
    lost = ran[name]
    assert lost.status == 1 and lost.steps == ["lab1 apply file+directory", "lab1 undo"], (
        lost.output
    )
    assert "ROLLED_BACK" in lost.output


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no data", "libvgpu needs --data library=FILE --data sha256=HEX"),
        ("wrong hash", "is not the library that sha256 names: it is"),
        ("no file", "library: /nowhere/x.so: No such file"),
        ("unfit", "libvgpu-candidate"),
        ("small", "libvgpu-symbols"),
        ("other", "libvgpu-other"),
        ("target", "libvgpu-target"),
        ("dark", "libvgpu-unreadable"),
        ("remove other", "is neither ours nor the original"),
        ("bad key", "unknown key 'recipe'"),
        ("injected", "is not a symbol's name"),
        ("not this rig", "is a Kubernetes rig"),
    ],
)
def test_what_is_refused(ran: Runs, name: str, part: str) -> None:
    ran[name].refused(part)


def test_another_library_that_was_waived_counts_as_the_original(ran: Runs) -> None:
    waived = ran["other waived"]
    assert waived.status == 0 and "waived libvgpu-other" in waived.output
    assert f"{OTHER} becomes" in waived.stderr


def test_a_named_target_is_taken(ran: Runs) -> None:
    assert f"write {BASE}.v9" in ran["target named"].stderr


def test_remove_brings_the_original_back_and_a_second_time_nothing(ran: Runs) -> None:
    remove = ran["remove"]
    assert f"write {BASE}" in remove.stderr and "remove /etc/rigbook/library.json" in remove.stderr
    assert ran["nothing to remove"].status == 0 and ran["nothing to remove"].changing == ()


def test_doctor_of_this_rig(ran: Runs) -> None:
    well, drift = ran["doctor"], ran["doctor drift"]
    assert well.status == 0 and "is ours" in well.output and well.changing == (), well.output
    drift.refused("1 finding(s) block", "libvgpu-drift")
    assert mapper().pid == 812 and "ai/lucebox-7d9 (pid 812)" in well.output
