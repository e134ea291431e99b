"""The grub.cfg that the host's own update-grub would write now; nothing is installed.

Titles are translated, and /etc/default/grub may name one: it runs in the host's locale, not in that
of whoever asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil

from node.core import proc
from node.core.errors import NodeError
from node.core.run import TimedOut, run
from node.files.private_folder import private_folder

MKCONFIG_S = 300.0
PREFIX = "rigbook-grub-"
# Debian's and Ubuntu's, then systemd's
LOCALE_FILES = ("/etc/default/locale", "/etc/locale.conf")
_LOCALE = re.compile(r"^\s*(?:export\s+)?(LANG|LANGUAGE|LC_[A-Z]+)=[\"']?([\w.@:-]*)[\"']?\s*$")
# what depends on the language: titles, and the lines that echo, translate or compare them
_TITLE = re.compile(r"^(\s*(?:menuentry|submenu) )(?:'[^']*'|\\')+")
_SPOKEN = re.compile(
    r"^\s*(?:echo\s|set (?:lang|locale_dir)=|insmod gettext$|if \[ \"x\$default\" = ')"
)


def locale() -> dict[str, str]:
    """Gives the locale of this host's services: of its files, else of systemd itself; {} for C."""
    texts = [proc.read_text(path) for path in LOCALE_FILES]
    with contextlib.suppress(FileNotFoundError, TimedOut):
        texts.append(run(["systemctl", "show-environment"], 10).out)
    for text in texts:
        found = {m[1]: m[2] for m in map(_LOCALE.match, text.splitlines()) if m and m[2]}
        if found:
            return found
    return {}


def generated() -> bytes:
    """Gives the grub.cfg that update-grub would write; nothing below /boot is touched.

    Raises NodeError (`update_grub_failed`).
    """
    program = shutil.which("grub-mkconfig", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise NodeError("there is no grub-mkconfig", "update_grub_failed",
                        "apt-get install --reinstall grub-common")  # fmt: skip
    with private_folder(PREFIX) as folder:
        target = os.path.join(folder, "grub.cfg")
        try:
            done = run([program, "-o", target], MKCONFIG_S, locale())
        except TimedOut as error:
            raise NodeError(f"update-grub: {error}", "update_grub_failed") from None
        raw = proc.read_bytes(target)
    if done.rc != 0 or not raw:
        raise NodeError(f"update-grub failed: {done.last_line()}", "update_grub_failed",
                        "sudo update-grub, and mend what it says")  # fmt: skip
    return raw


def without_language(raw: bytes) -> str:
    """Gives a grub.cfg without what depends on the language in which it was made."""
    lines = raw.decode("utf-8", "replace").splitlines()
    return "\n".join(_TITLE.sub(r"\1", line) for line in lines if not _SPOKEN.match(line))
