"""A value as systemd's EnvironmentFile= reads it back (systemd.exec(5)), and back again."""

from __future__ import annotations

import re

# Everything else gets double quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./~-]+\Z")


def environment_value(value: str) -> str:
    """A value as systemd's EnvironmentFile= reads it back.

    Within double quotes a backslash takes the meaning from `"`, `\\`, `$` and a backtick.
    """
    return value if _PLAIN.match(value) else '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


def environment_text(written: str) -> str:
    """The value that `environment_value` wrote."""
    if len(written) < 2 or not (written.startswith('"') and written.endswith('"')):
        return written
    return re.sub(r'\\(["\\$`])', r"\1", written[1:-1])
