"""grub.cfg and grubenv: which entry GRUB takes, and what it does when the named one is gone."""

from __future__ import annotations

import pytest

from node.kernel import bootloader, grubcfg, grubenv
from tests.unit.node.support.grubfiles import UUID, advanced, grub_cfg

NEW, OLD = "6.17.0-23-generic", "6.17.0-22-generic"
BOTH = (NEW, OLD)


def _next(text: str, env: dict[str, str] | None, state: str = "ok") -> dict[str, object]:
    return bootloader.following(grubcfg.Menu(text, env), env, state)


@pytest.mark.parametrize(("default", "env", "kernel", "how"), [
    ("0", {}, NEW, "menu"),
    ("1>2", {}, OLD, "menu"),
    ("1>9", {}, NEW, "first"),
    ("gnulinux-simple-" + UUID, {}, NEW, "menu"),
    # the seed's way: a title
    ("Optionen für Debian>Debian GNU/Linux, with Linux " + OLD, {}, OLD, "menu"),
    ("Advanced options for Ubuntu>Ubuntu, with Linux " + OLD, {}, NEW, "first"),
    ("${saved_entry}", {"saved_entry": advanced(OLD)}, OLD, "saved"),
    ("${saved_entry}", {}, NEW, "first"),
    ("${saved_entry}", None, NEW, "first"),
    ("${saved_entry}", {"saved_entry": advanced("6.1.0-1-gone")}, NEW, "first"),
    ("${saved_entry}", {"saved_entry": advanced(OLD), "next_entry": advanced(NEW)}, NEW,
     "next_entry"),
    ("${saved_entry}", {"saved_entry": advanced(NEW), "next_entry": "nowhere"}, NEW, "first"),
    ("0", {"next_entry": advanced(OLD)}, OLD, "next_entry"),
    # what 00_header does before it reads saved_entry: an older saved one is put back, later
    ("${saved_entry}", {"saved_entry": advanced(OLD), "initrdfail": "1",
                        "prev_entry": advanced(NEW)}, NEW, "next_entry"),
])  # fmt: skip
def test_the_next_boot(default: str, env: dict[str, str] | None, kernel: str, how: str) -> None:
    state = "missing" if env is None else "ok"
    found = _next(grub_cfg(BOTH, default), env, state)
    assert (found["kernel"], found["how"]) == (kernel, how), found
    if how == "first":
        assert "first entry" in str(found["why"])


def test_a_pin_whose_kernel_was_removed_names_what_is_missing() -> None:
    found = _next(grub_cfg([NEW]), {"saved_entry": advanced(OLD)})
    assert found["kernel"] == NEW
    # the submenu is still there: GRUB takes ITS first entry
    assert found["entry"] == advanced(NEW)
    assert found["missing"] == [f"gnulinux-{OLD}-advanced-{UUID}"]


def test_what_lasts_is_told_apart_from_one_boot() -> None:
    env = {"saved_entry": advanced(OLD), "next_entry": advanced(NEW)}
    text = grub_cfg(BOTH)
    menu = grubcfg.Menu(text, env)
    assert bootloader.following(menu, env, "ok")["kernel"] == NEW
    assert bootloader.lasting(menu, env, "ok", text, "/nowhere")["kernel"] == OLD


@pytest.mark.parametrize(("text", "kernel", "paths"), [
    (grub_cfg(BOTH), NEW, [advanced(NEW)]), (grub_cfg(BOTH), "6.17.0-2", []),
    (grub_cfg([NEW, NEW]), NEW, [advanced(NEW)] * 2),
    (grub_cfg(BOTH, said="Debian GNU/Linux, mit"), OLD, [advanced(OLD)]),
], ids=["no recovery", "none", "two are both told", "translated"])  # fmt: skip
def test_the_entries_of_a_kernel(text: str, kernel: str, paths: list[str]) -> None:
    menu = grubcfg.Menu(text, {})
    assert [path for path, _ in grubcfg.entries_of(menu.entries, kernel)] == paths


def test_a_default_under_a_condition_of_grub_itself_is_unknown() -> None:
    text = grub_cfg(BOTH) + 'if keystatus --shift; then\n set default="1>2"\nfi\n'
    found = _next(text, {"saved_entry": advanced(OLD)})
    assert (found["kernel"], found["how"]) == (None, "unknown")


def test_custom_cfg_counts() -> None:
    menu = grubcfg.Menu(grub_cfg(BOTH), {"saved_entry": advanced(OLD)}, 'set default="0"\n')
    assert bootloader.following(menu, {}, "ok")["kernel"] == NEW


def test_entries_with_quotes_and_braces_in_their_titles() -> None:
    name = "'It'\\''s {one}; # no comment' --id \"a\\\"b\""
    text = f"menuentry {name} {{ linux /vmlinuz-1.2.3 ro kho=off }}\n"
    (entry,) = grubcfg.Menu(text, {}).entries
    assert (entry["title"], entry["id"]) == ("It's {one}; # no comment", 'a"b')
    assert (entry["kernel"], entry["options"]) == ("1.2.3", "ro kho=off")


@pytest.mark.parametrize("text", [
    "", "set default=0\n", grub_cfg(BOTH)[:-1200], grub_cfg(BOTH) + "}\n",
    grub_cfg(BOTH) + "menuentry 'never ends\n", grub_cfg(BOTH) + "if [ 1 ]; then\n", "\0" * 4096,
], ids=["empty", "no-entry", "cut", "closed-twice", "quote", "if", "zeros"])  # fmt: skip
def test_a_malformed_file_is_said_to_be_one(text: str) -> None:
    with pytest.raises(grubcfg.Malformed):
        grubcfg.Menu(text, {})


def test_every_cut_of_a_file_is_malformed_or_says_where_it_leads() -> None:
    whole = grub_cfg(BOTH)
    for end in range(0, len(whole), 37):
        try:
            menu = grubcfg.Menu(whole[:end], {"saved_entry": advanced(OLD)})
        except grubcfg.Malformed:
            continue
        found = bootloader.following(menu, {"saved_entry": advanced(OLD)}, "ok")
        assert found["kernel"] in (OLD, NEW)


def test_the_environment_block_is_read_and_written_as_grub_does() -> None:
    raw = grubenv.render({"saved_entry": advanced(OLD), "odd": "back\\slash"})
    assert len(raw) == 1024 and raw.startswith(b"# GRUB Environment Block\n")
    assert grubenv.parse(raw) == {"saved_entry": advanced(OLD), "odd": "back\\slash"}


@pytest.mark.parametrize("raw", [b"", b"\0" * 1024, grubenv.render({"a": "b"})[:1000]])
def test_a_corrupt_block_is_said_to_be_one(raw: bytes) -> None:
    with pytest.raises(grubenv.Corrupt):
        grubenv.parse(raw)


def test_a_new_saved_entry_keeps_foreign_variables() -> None:
    before = {"recordfail": "1", "prev_saved_entry": "x", "saved_entry": "y", "next_entry": "z"}
    assert grubenv.changed(before, "new", None) == {"recordfail": "1", "saved_entry": "new"}
    assert grubenv.changed(before, None, None) == {"recordfail": "1"}


def test_a_block_that_is_full_is_refused() -> None:
    with pytest.raises(grubenv.Corrupt, match="1024"):
        grubenv.render({"long": "x" * 1000})
