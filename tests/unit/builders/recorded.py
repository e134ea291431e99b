"""Parts of hosts that are well, as recorded.yaml has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_ALL: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


def recorded(part: str, /, **changes: Any) -> dict[str, Any]:
    """The values of a part, with these changed or added."""
    return {**_ALL[part], **changes}
