"""What may stand as a URL."""

from __future__ import annotations

from urllib.parse import urlsplit

MAX_URL = 4096


def is_http_url(value: str) -> bool:
    """Gives True for an http or https URL of printable ASCII without blanks and a user's name."""
    if len(value) > MAX_URL or any(not 32 < ord(char) < 127 for char in value):
        return False
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
