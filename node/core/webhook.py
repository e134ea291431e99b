"""HTTP without a proxy and without redirects, and one notice POSTed to a webhook."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from node.core.errors import Json

TIMEOUT_S = 10.0
# what `reason` says of a server that took the connection and said nothing
NO_ANSWER = "no answer in time"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would turn a POST into a GET somewhere else: it is an answer like any other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Gives an opener that uses no proxy and follows no redirect."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def reason(error: Exception) -> str:
    """Gives why a request failed, in words that never hold its URL."""
    inner = getattr(error, "reason", None)
    if isinstance(error, urllib.error.URLError) and isinstance(inner, Exception):
        error = inner
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return NO_ANSWER
    if isinstance(error, OSError) and error.strerror and not hasattr(error, "library"):
        return error.strerror
    return type(error).__name__


def post(url: str, body: Json) -> str | None:
    """POSTs one notice; gives why it was not taken, never with the URL, or None."""
    try:
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode("utf-8"),
            headers={"Content-Type": "application/json", "User-Agent": "rigbook-watch"},
        )
        with opener().open(request, timeout=TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except Exception as error:  # whatever it is: the notice stays, and the URL is not told
        return reason(error)
