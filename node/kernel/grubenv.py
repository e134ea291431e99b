"""GRUB's environment block: 1024 bytes of `name=value` lines, filled up with `#`. Pure."""

from __future__ import annotations

SIZE = 1024
HEAD = "# GRUB Environment Block\n"


class Corrupt(ValueError):
    """The bytes are no environment block; GRUB then knows no saved entry."""


def parse(raw: bytes) -> dict[str, str]:
    """Gives the block's variables in order. Raises Corrupt."""
    if len(raw) < SIZE:
        raise Corrupt(f"it has {len(raw)} bytes, a block has {SIZE}")
    text = raw.decode("utf-8", "surrogateescape")
    if not text.startswith(HEAD):
        raise Corrupt("it does not begin with `# GRUB Environment Block`")
    found: dict[str, str] = {}
    for line in text[len(HEAD) :].replace("\\\n", "\0").split("\n"):
        name, equals, value = line.replace("\0", "\\\n").partition("=")
        if equals and not name.startswith("#"):
            found[name] = value.replace("\\\\", "\\")
    return found


def render(values: dict[str, str]) -> bytes:
    """Gives the block of these variables. Raises Corrupt when they do not fit."""
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in values.items()]
    raw = (HEAD + "".join(lines)).encode("utf-8", "surrogateescape")
    if len(raw) > SIZE:
        raise Corrupt(f"its variables need {len(raw)} bytes, a block has {SIZE}")
    return raw + b"#" * (SIZE - len(raw))


def changed(values: dict[str, str], saved: str | None, following: str | None) -> dict[str, str]:
    """Gives the variables with this saved_entry and next_entry; None leaves one out.

    prev_saved_entry goes: with it GRUB would put an older saved_entry back (00_header).
    """
    out = {k: v for k, v in values.items()
           if k not in ("saved_entry", "next_entry", "prev_saved_entry")}  # fmt: skip
    if saved is not None:
        out["saved_entry"] = saved
    if following is not None:
        out["next_entry"] = following
    return out
