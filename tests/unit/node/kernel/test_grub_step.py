"""The grub step: old or new at every point, refused before anything changed, undone to the byte.

GRUB's folder lies in a test folder and grub-mkconfig is a stand-in; real ones are the VM tier's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change import apply, journal, transaction
from node.core import files
from node.core.errors import NodeError
from node.core.run import Done
from node.kernel import boot, grub_step, installed
from tests.unit.node.support.host import change
from tests.unit.node.support.kernel_world import advanced, grub_cfg

NEW, OLD = "6.17.0-23-generic", "6.17.0-22-generic"
# Stand-in for grub-mkconfig -o FILE: what the test laid ready, or a failure. The real one with
# translated titles is tests/system/lab/test_hosts.py's.
MKCONFIG = """#!/bin/sh
language=${{LC_ALL:-${{LC_MESSAGES:-$LANG}}}}
ready="{ready}"
[ ! -e "$ready.${{language%_*}}" ] || ready="$ready.${{language%_*}}"
cat "$ready" > "$2.new" || exit 1
[ ! -e "{ready}.fails" ] || {{ echo "/etc/grub.d/10_linux: syntax error" >&2; exit 1; }}
mv "$2.new" "$2"
"""


class Grub:
    """A GRUB folder that the step works on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "grub"
        self.program = folder / "grub-mkconfig"
        self.locale = folder / "locale"
        self.ready = folder / "ready.cfg"
        self.kind = "plain"
        self.default = folder / "zz-rigbook.cfg"

    def make(self) -> None:
        """The files as they are before each test."""
        self.folder.mkdir(exist_ok=True)
        self.put(grub_cfg((NEW, OLD), "0"), {"recordfail": "1"})
        self.ready.write_text(grub_cfg((NEW, OLD)))
        self.program.write_text(MKCONFIG.format(ready=self.ready))
        self.program.chmod(0o755)
        self.locale.write_text('LANG="de_DE.UTF-8"\n')

    def put(self, cfg: str, env: dict[str, str]) -> None:
        """GRUB's files as they are before."""
        (self.folder / "grub.cfg").write_text(cfg)
        (self.folder / "grubenv").write_bytes(boot.render_env(env))

    def env(self) -> dict[str, str]:
        """The variables of the environment block."""
        return boot.parse_env((self.folder / "grubenv").read_bytes())

    def state(self) -> dict[str, str]:
        """Hashes of everything in the folder."""
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in self.folder.iterdir()}

    def boots(self) -> tuple[object, object]:
        """(the next boot's kernel, the default)."""
        state, env = boot.environment(str(self.folder))
        text = (self.folder / "grub.cfg").read_text()
        menu = boot.menu_of_text(text, env, str(self.folder))
        then = boot.lasting_boot(menu, env, state, text, str(self.folder))
        return boot.following_boot(menu, env, state)["kernel"], then["kernel"]


def lead(made: Grub, set_to: Callable[[object, str, object], object]) -> None:
    """Lead the functions that find GRUB's files to these."""
    set_to(grub_step.shutil, "which", lambda *_, **__: str(made.program))
    set_to(grub_step, "LOCALE_FILES", (str(made.locale),))
    set_to(boot, "boot_folder", lambda root="": str(made.folder))
    set_to(boot, "loader", lambda root="": ("grub", "a test"))
    set_to(boot, "place_of_env",
           lambda path: {"sticky": made.kind != "plain", "kind": made.kind})  # fmt: skip
    # the real one freezes this machine's disk for a moment
    set_to(grub_step, "flush_boot", lambda folder: False)
    rows = [{"release": k, "vmlinuz": "x", "initrd": "x"} for k in (NEW, OLD)]
    set_to(installed, "installed", lambda module: rows)


@pytest.fixture
def grub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grub:
    """GRUB's files in a folder, the functions that find them led there."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    # the operator's own session
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    made = Grub(tmp_path)
    made.make()
    lead(made, monkeypatch.setattr)
    return made


def pin(kernel: object = OLD, **more: Any) -> dict[str, Any]:
    """An apply of one grub step."""
    step = {"op": "grub", "saved": kernel, "regenerate": True, **more}
    return {"change": change(), "steps": [step]}


def test_a_pin_changes_the_default_and_keeps_foreign_variables(grub: Grub) -> None:
    assert grub.boots() == (NEW, NEW)
    assert apply.apply(pin())["changed"]
    assert grub.boots() == (OLD, OLD)
    assert grub.env() == {"recordfail": "1", "saved_entry": advanced(OLD)}


def test_a_second_pin_changes_nothing(grub: Grub) -> None:
    apply.apply(pin())
    before = grub.state()
    assert not apply.apply(pin())["changed"]
    assert grub.state() == before


@pytest.mark.parametrize("env", [{"a": "b", "next_entry": "x"}, {}, {"saved_entry": "1>0"}])
def test_undo_restores_every_byte(grub: Grub, env: dict[str, str]) -> None:
    grub.put(grub_cfg((NEW, OLD), "Advanced options>with Linux"), env)
    before = grub.state()
    apply.apply(pin())
    assert grub.state() != before
    transaction.undo({"change": "change-1"})
    assert grub.state() == before


NEWEST = "6.17.0-24-generic"
GERMAN, TITLES = "Debian GNU/Linux, mit", "Optionen für Debian>Debian GNU/Linux, mit Linux "


def apt_wrote(grub: Grub, then: str, default: str = "${saved_entry}") -> None:
    """apt installed a kernel and made the menu; `then` is what update-grub makes after the undo."""
    env = {"recordfail": "0", "saved_entry": advanced(OLD), "own": "1"}
    made = grub_cfg((NEWEST, NEW, OLD), default)
    grub.put(made, env)
    # once more as it lies there, so that the edit is seen to be a machine's; then as after it
    grub.ready.write_text(made)
    program = Path(grub_step.shutil.which("grub-mkconfig") or "")
    after = f'[ ! -e "{grub.ready}.then" ] || mv "{grub.ready}.then" "{grub.ready}"\n'
    program.write_text(program.read_text() + after)
    Path(f"{grub.ready}.then").write_text(then)


def test_undo_after_apt_wrote_grub_cfg_and_grub_cleared_next_entry(grub: Grub) -> None:
    grub.put(grub_cfg((NEW, OLD), advanced(NEW)), {"recordfail": "1"})
    apply.apply(pin())
    apt_wrote(grub, grub_cfg((NEWEST, NEW, OLD), advanced(NEW)))
    assert transaction.undo({"change": "change-1"})["status"] == "ROLLED_BACK"
    # made anew from what /etc/default/grub says then, and what others put into the block stays
    assert grub.boots() == (NEW, NEW)
    assert grub.env() == {"recordfail": "0", "own": "1"}


def test_undo_that_would_boot_another_kernel_is_inconsistent_and_says_which(grub: Grub) -> None:
    apply.apply(pin())
    apt_wrote(grub, grub_cfg((NEWEST, NEW, OLD), "0"))
    with pytest.raises(NodeError, match=f"default boot would be {NEWEST}, not {NEW}: ") as failed:
        transaction.undo({})
    assert failed.value.code == "undo_incomplete"
    assert journal.get("change-1")["status"] == "INCONSISTENT" and grub.boots() == (NEWEST, NEWEST)
    # somebody decides for the former kernel; the next undo looks again
    grub.put(grub_cfg((NEWEST, NEW, OLD), advanced(NEW)), grub.env())
    grub.ready.write_text(grub_cfg((NEWEST, NEW, OLD), advanced(NEW)))
    assert transaction.undo({})["status"] == "ROLLED_BACK" and grub.boots() == (NEW, NEW)


def test_the_menu_is_made_in_the_hosts_language_not_the_operators(grub: Grub) -> None:
    german = Path(f"{grub.ready}.de")
    german.write_text(grub_cfg((NEW, OLD), TITLES + NEW, GERMAN))
    grub.put(german.read_text(), {})
    german.write_text(grub_cfg((NEW, OLD), said=GERMAN))
    apply.apply(pin())
    assert "mit Linux" in (grub.folder / "grub.cfg").read_text()
    # an English menu has no such title, and GRUB would take the first entry
    grub.put(grub_cfg((NEWEST, NEW, OLD), said=GERMAN), grub.env())
    german.write_text(grub_cfg((NEWEST, NEW, OLD), TITLES + NEW, GERMAN))
    grub.ready.write_text(grub_cfg((NEWEST, NEW, OLD), TITLES + NEW))
    transaction.undo({"overwrite": [str(grub.folder / "grub.cfg")]})
    assert grub.boots() == (NEW, NEW)


@pytest.mark.parametrize(("files", "manager", "found"), [
    (('LANG="de_DE.UTF-8"\nLANGUAGE=de:en\n', "LANG=fr_FR\n"), "",
     {"LANG": "de_DE.UTF-8", "LANGUAGE": "de:en"}),
    (("#LANG=x\n", "export LANG='de_DE.UTF-8'\nLC_TIME=C.UTF-8\n"), "",
     {"LANG": "de_DE.UTF-8", "LC_TIME": "C.UTF-8"}),
    ((None, None), "LANG=C.UTF-8\nPATH=/bin\n", {"LANG": "C.UTF-8"}),
    ((None, "LANG=$(id)\nLD_PRELOAD=/x\nLC_ALL=\n"), "", {}),
])  # fmt: skip
def test_the_hosts_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str | None, ...], manager: str,
    found: dict[str, str],
) -> None:  # fmt: skip
    for n, text in enumerate(files):
        if text is not None:
            (tmp_path / str(n)).write_text(text)
    monkeypatch.setattr(grub_step, "LOCALE_FILES", (str(tmp_path / "0"), str(tmp_path / "1")))
    monkeypatch.setattr(grub_step, "run", lambda *_: Done(0, manager, ""))
    assert grub_step.locale() == found


def test_an_edit_by_hand_is_kept_unless_it_is_named(grub: Grub) -> None:
    apply.apply(pin())
    path = grub.folder / "grub.cfg"
    edited = path.read_text().replace(" ro ", " ro nomodeset ")
    path.write_text(edited)
    with pytest.raises(NodeError, match="edited after the change") as refusal:
        transaction.undo({})
    assert f"--overwrite {path}" in refusal.value.remedy and path.read_text() == edited
    assert journal.get("change-1")["status"] == "OPEN"
    grub.ready.write_text(grub_cfg((NEW, OLD), "0"))
    assert transaction.undo({"overwrite": [str(path)]})["status"] == "ROLLED_BACK"
    (step,) = journal.get("change-1")["steps"]
    assert files.load_blob(step["overwrote"]) == edited.encode() and grub.boots() == (NEW, NEW)


def test_a_dry_run_writes_nothing_below_boot(grub: Grub) -> None:
    before, when = grub.state(), grub.folder.stat().st_mtime_ns
    assert apply.apply({**pin(), "dry": True})["changed"]
    assert (grub.state(), grub.folder.stat().st_mtime_ns) == (before, when)


def test_one_boot_is_next_entry_and_leaves_the_default(grub: Grub) -> None:
    apply.apply(pin())
    apply.apply(pin(OLD, regenerate=False, next=NEW))
    assert grub.boots() == (NEW, OLD)


def _refused(grub: Grub, request: dict[str, Any], *words: str) -> None:
    before = grub.state()
    with pytest.raises(NodeError) as refusal:
        apply.apply(request)
    said = str(refusal.value)
    for word in (*words, "nothing was changed"):
        assert word in said
    assert grub.state() == before


BOTH = grub_cfg((NEW, OLD))
BY_HAND = grub_cfg((NEW, OLD), "0")


@pytest.mark.parametrize(("made", "kernel", "words"), [
    (BOTH, "6.1.0-1-gone", ("no entry for 6.1.0-1-gone", NEW, OLD)),
    (grub_cfg((NEW, OLD, OLD)), OLD, ("2 entries", advanced(OLD))),
    (BY_HAND, OLD, (f"would be {NEW}, not {OLD}", "GRUB_DEFAULT=")),
    (BY_HAND, NEW, (f"would be {NEW}, but not because it is saved", "GRUB_DEFAULT=")),
    (BOTH[:-900], OLD, ("malformed",)),
], ids=["no entry", "two entries", "a later default", "right by chance", "cut"])  # fmt: skip
def test_what_update_grub_made_is_refused_where_it_would_not_boot_the_kernel_by_the_pin(
    grub: Grub, made: str, kernel: str, words: tuple[str, ...]
) -> None:
    grub.ready.write_text(made)
    _refused(grub, pin(kernel), *words)


def test_a_failing_update_grub_changes_nothing(grub: Grub) -> None:
    Path(f"{grub.ready}.fails").touch()
    _refused(grub, pin(), "update-grub failed", "syntax error")


@pytest.mark.parametrize("raw", [None, b"", b"x" * 1024], ids=["missing", "empty", "corrupt"])
def test_a_bad_environment_block_is_refused(grub: Grub, raw: bytes | None) -> None:
    (grub.folder / "grubenv").unlink()
    if raw is not None:
        (grub.folder / "grubenv").write_bytes(raw)
    _refused(grub, pin(), "grubenv is", "missing" if raw is None else "corrupt")


def test_one_boot_where_grub_cannot_write_is_refused(grub: Grub) -> None:
    apply.apply(pin())
    grub.kind = "lvm"
    transaction.close({"change": "change-1", "status": "COMMITTED"})
    request = {**pin(OLD, regenerate=False, next=NEW), "change": change("change-2")}
    _refused(grub, request, "lies on lvm")


@pytest.mark.parametrize("value", ["-x", "6.1 rm", "$(id)", "../6", "6\n1", "", 6])
def test_a_hostile_kernel_name_is_refused(grub: Grub, value: object) -> None:
    before = grub.state()
    with pytest.raises(NodeError, match="saved"):
        apply.apply(pin(value))
    assert grub.state() == before


class Cut(BaseException):
    """The power is gone: nothing after it runs."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(1, 9))
def test_cut_at_every_rename_it_boots_old_or_new_and_undo_goes_back(
    grub: Grub, monkeypatch: pytest.MonkeyPatch, nth: int, after: bool
) -> None:
    before, count = grub.state(), [0]
    real: Callable[..., None] = files.replace

    def replace(*words: Any) -> None:
        count[0] += 1
        if count[0] != nth or after:
            real(*words)
        if count[0] == nth:
            raise Cut

    finished = True
    with monkeypatch.context() as cut:
        cut.setattr(files, "replace", replace)
        try:
            apply.apply(pin())
        except Cut:
            finished = False
    assert grub.boots() in ((NEW, NEW), (OLD, OLD))
    if not finished:
        transaction.undo({})
        assert {k: v for k, v in grub.state().items() if not k.startswith(".")} == before
    # two pre-images, the intent, grubenv, grub.cfg, the done mark
    assert finished == (nth > 6)
