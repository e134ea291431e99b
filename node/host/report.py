"""host: its settings against a hang, its boots, and what memory killed; read-only.

Type: schema/machine/host.py. A reading verb of its own: host.py and the doctor ask for it.
"""

from __future__ import annotations

import time

from node.core import validate
from node.core.errors import CannotRead, Json, io_reason
from node.core.parallel import each
from node.host import boots, kills, settings

_SECTIONS = (("settings", settings.read), ("boots", boots.read), ("kills", kills.read))


def collect(request: Json) -> Json:
    """Gives the document of schema/machine/host.py; a part that cannot be read says why."""
    began = time.monotonic()
    validate.keys(request, "request", ())

    def section(number: int) -> object:
        try:
            return _SECTIONS[number][1]()
        except CannotRead as error:
            return {"unreadable": str(error)}
        except OSError as error:
            return {"unreadable": io_reason(error)}

    found = each(section, range(len(_SECTIONS)), len(_SECTIONS))
    names = [name for name, _ in _SECTIONS]
    return {
        "format": 1,
        **dict(zip(names, found, strict=True)),
        "took_s": round(time.monotonic() - began, 3),
    }
