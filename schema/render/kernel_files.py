"""The files of a kernel pin, and of a candidate's one boot (node/kernel/candidate.py reads the
latter).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from schema.desired.plan import Document
from schema.render.engine_files import UNITS_DIR, render

GRUB_DIR = "/etc/default/grub.d"
GRUB_PATH = f"{GRUB_DIR}/zz-rigbook.cfg"
APT_PATH = "/etc/apt/apt.conf.d/99rigbook-kernel"
PIN_PATHS = (GRUB_DIR, GRUB_PATH, APT_PATH)
CANDIDATE_SERVICE = "rigbook-candidate.service"
CANDIDATE_PATH = "/etc/rigbook/candidate.json"
CANDIDATE_SERVICE_PATH = f"{UNITS_DIR}/{CANDIDATE_SERVICE}"
CANDIDATE_PATHS = ("/etc/rigbook", CANDIDATE_PATH, CANDIDATE_SERVICE_PATH)


def pin_documents(release: str, packages: Sequence[str]) -> tuple[Document, ...]:
    """What lands on a node whose kernel is pinned: GRUB's default, and apt's hands off it.

    unattended-upgrades reads its blacklist as Python regular expressions from the name's begin.
    """
    patterns = [f"^{re.escape(name)}$".replace("\\-", "-") for name in packages]
    return (
        Document(GRUB_PATH, render(GRUB_PATH), "0644"),
        Document(APT_PATH, render(APT_PATH, release=release, patterns=patterns), "0644"),
    )


def candidate_documents(
    candidate: str, pinned: str, budget_s: int, change: str
) -> tuple[Document, ...]:
    """What lands on a node that tries a kernel once: whom it waits for, and the unit that waits."""
    facts = {"format": 1, "candidate": candidate, "pinned": pinned, "budget_s": budget_s,
             "change": change}  # fmt: skip
    text = json.dumps(facts, indent=1, sort_keys=True) + "\n"
    unit = render(CANDIDATE_SERVICE_PATH, candidate=candidate, pinned=pinned)
    return (
        Document(CANDIDATE_PATH, text, "0644"),
        Document(CANDIDATE_SERVICE_PATH, unit, "0644"),
    )
