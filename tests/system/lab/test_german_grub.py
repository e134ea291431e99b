"""A pin on a German host: real grub-mkconfig, translated titles. Undo boots what it recorded, or
says INCONSISTENT.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.core import settings
from schema.render.kernel_files import GRUB_PATH, pin_documents
from tests.system.lab.support.german import NEW, NEWEST, OLD, TITLE, German, german


@pytest.fixture
def host(tmp_path: Path) -> Iterator[German]:
    """Two kernels, and a GRUB_DEFAULT that holds the older one's German title."""
    with german(settings.load(), tmp_path) as made:
        made.kernel(OLD)
        made.kernel(NEW)
        made.default(TITLE.format(OLD))
        assert f"menuentry 'Debian GNU/Linux, mit Linux {OLD}'" in made.update_grub()
        assert made.boots() == (OLD, OLD)
        yield made


def pin(host: German, release: str, dry: bool = False) -> None:
    """deploys/kernel.py's steps, without the holds."""
    change = {"id": "pin-1-kernel", "deploy": "kernel", "operator": "a@b"}
    steps = [
        {"op": "file", "path": GRUB_PATH, "mode": "0644",
         "content": pin_documents(release, [])[0].content},
        {"op": "grub", "saved": release, "regenerate": True},
    ]  # fmt: skip
    answer = host.node("apply", {"change": change, "steps": steps, "dry": dry})
    assert answer["ok"] and answer["changed"], answer
    assert dry or host.boots() == (release, release)


def test_a_pin_leaves_a_german_menu_and_undo_restores_all(host: German) -> None:
    before = host.menu()
    pin(host, NEW)
    menu = host.menu()
    assert f"mit Linux {OLD}" in menu and "with Linux" not in menu
    # what apt would write now is the same, to the byte
    assert host.update_grub() == menu
    assert host.node("undo")["status"] == "ROLLED_BACK"
    assert host.menu() == before and host.boots() == (OLD, OLD)


def test_undo_after_apt_wrote_the_menu_boots_what_it_recorded(host: German) -> None:
    """The titles in GRUB_DEFAULT are German: an English menu would boot the newest kernel."""
    pin(host, NEW)
    host.kernel(NEWEST)
    host.update_grub()
    answer = host.node("undo")
    assert (answer.get("status"), host.boots()) == ("ROLLED_BACK", (OLD, OLD)), answer
    assert "with Linux" not in host.menu()


def test_undo_that_would_boot_another_kernel_says_so_until_somebody_decides(host: German) -> None:
    host.default("0")
    host.update_grub()
    assert host.boots() == (NEW, NEW)
    pin(host, OLD)
    host.kernel(NEWEST)
    host.update_grub()
    answer = host.node("undo")
    assert host.boots() == (NEWEST, NEWEST)
    assert answer["code"] == "undo_incomplete", answer
    assert f"the default boot would be {NEWEST}, not {NEW}" in answer["error"]
    (change,) = host.node("journal")["changes"]
    assert change["status"] == "INCONSISTENT"
    # the newer kernel goes: what was recorded boots again, and the next undo sees it
    for name in ("vmlinuz", "initrd.img"):
        (host.root / f"boot/{name}-{NEWEST}").unlink()
    host.update_grub()
    assert host.node("undo")["status"] == "ROLLED_BACK" and host.boots() == (NEW, NEW)


def test_an_edit_by_hand_is_not_overwritten_unless_it_is_named(host: German) -> None:
    pin(host, NEW)
    path = host.root / "boot/grub/grub.cfg"
    path.chmod(0o644)
    edited = path.read_text().replace(f"vmlinuz-{OLD} ", f"vmlinuz-{OLD} nomodeset ")
    path.write_text(edited)
    answer = host.node("undo")
    assert answer["code"] == "later_edit" and "/boot/grub/grub.cfg" in answer["error"], answer
    assert "--overwrite /boot/grub/grub.cfg" in answer["remedy"] and path.read_text() == edited
    assert host.node("undo", {"overwrite": ["/boot/grub/grub.cfg"]})["status"] == "ROLLED_BACK"
    assert host.boots() == (OLD, OLD)


def test_a_session_in_another_language_made_the_menu_and_that_is_no_edit(host: German) -> None:
    """`sudo update-grub` in an English session: sshd takes LANG from the operator's machine."""
    pin(host, NEW)
    assert host.run("grub-mkconfig", "-o", "/boot/grub/grub.cfg").returncode == 0
    assert f"with Linux {OLD}" in host.menu()
    assert host.node("undo")["status"] == "ROLLED_BACK" and host.boots() == (OLD, OLD)


def test_a_dry_run_writes_nothing_in_grubs_folder(host: German) -> None:
    (host.root / GRUB_PATH[1:]).write_text(pin_documents(NEW, [])[0].content)
    folder = host.root / "boot/grub"
    before = (folder.stat().st_mtime_ns, sorted(p.name for p in folder.iterdir()))
    pin(host, NEW, dry=True)
    assert (folder.stat().st_mtime_ns, sorted(p.name for p in folder.iterdir())) == before
