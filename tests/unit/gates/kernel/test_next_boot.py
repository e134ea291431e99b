"""The steps of a pin and of a candidate's one boot; what stands against them: cases/boot.yaml."""

from __future__ import annotations

import hashlib

from deploys.procedures.host.kernel import Trial, candidate_steps, pin_steps, pin_words
from schema.observed.files import FileState
from schema.observed.kernel import GrubDefault
from schema.render.kernel_files import pin_documents
from tests.unit.builders import kernel_parts as k
from tests.unit.builders.kernel_parts import NEW, OLD

GONE = k.target(NEW, "first", "saved_entry names x, and x is not in the menu: first entry")


def test_the_unit_that_falls_back_is_there_before_the_one_boot() -> None:
    *_, unit, once = candidate_steps(Trial(NEW, 1800, "change"), k.facts(), {})
    assert unit["op"] == "unit" and unit["enabled"] is True
    assert once == {"op": "grub", "saved": OLD, "next": NEW, "regenerate": False}


def files(release: str) -> dict[str, FileState]:
    """The pin's files as they are after it."""
    return {
        d.path: FileState(
            path=d.path, kind="file", sha256=hashlib.sha256(d.content.encode()).hexdigest(),
            size=len(d.content), mode=d.mode, uid=0, gid=0, content=d.content,
        )
        for d in pin_documents(release, k.apt().pinning[release])
    }  # fmt: skip


def test_a_pin_that_is_there_has_no_steps() -> None:
    assert pin_steps(OLD, k.grub(), k.apt(), files(OLD)) == []
    assert pin_words(OLD, k.grub(), k.apt()) == (f"default kernel: {OLD} (saved)",)


def test_each_part_of_a_pin_that_is_missing_comes_back_alone() -> None:
    held = k.apt(holds=())
    assert [s["op"] for s in pin_steps(OLD, k.grub(), held, files(OLD))] == ["hold"]
    once = k.grub(next_entry=k.path(NEW))
    assert [s["op"] for s in pin_steps(OLD, once, k.apt(), files(OLD))] == ["grub"]
    assert [s["op"] for s in pin_steps(OLD, k.grub(), k.apt(), {})] == ["file", "file", "grub"]


def test_the_seeds_title_is_recognised_and_left_in_place() -> None:
    title = GrubDefault(value="Advanced options for Ubuntu>Ubuntu, with Linux " + OLD,
                        file="/etc/default/grub", mode="title")  # fmt: skip
    words = pin_words(OLD, k.grub(configured=title, saves=False, default=GONE), k.apt(holds=()))
    assert f"{NEW} (" in words[0] and f"-> {OLD} (saved)" in words[0]
    assert "is a menu's title" in words[1] and "the line stays" in words[1]
    assert words[2] == f"new holds: linux-generic, linux-image-{OLD}"


def test_apt_leaves_the_pinned_kernel_alone() -> None:
    (_, conf) = pin_documents(OLD, k.apt().pinning[OLD])
    assert conf.content.count('"^linux-image-6\\.17\\.0-22-generic$";') == 2
    assert 'Remove-Unused-Kernel-Packages "false";' in conf.content
