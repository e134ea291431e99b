"""Copies of backups outside the rig, sealed by real age: manifests without their pieces."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operations.sealed import age, copy


def sealed_in(folder: Path, manifests: Mapping[str, Mapping[str, Any]]) -> str:
    """Make a copy below `folder` for each `HOST/ID`; gives the file of the identity that opens
    them.
    """
    identity = folder / "identity"
    subprocess.run(["age-keygen", "-o", str(identity)], check=True, capture_output=True)
    said = subprocess.run(["age-keygen", "-y", str(identity)], check=True, capture_output=True)
    for name, manifest in manifests.items():
        document = {"manifest": {"id": name.rpartition("/")[2], **manifest}, "piece": copy.PIECE,
                    "files": [{"name": "payload.tar.zst", "bytes": 800 << 20, "pieces": []}],
                    "pack": []}  # fmt: skip
        sealed = age.seal(json.dumps(document).encode(), said.stdout.decode().strip())
        place = folder / copy.folder_of(*name.rsplit("/", 1))
        place.mkdir(parents=True)
        (place / f"{copy.MANIFEST}.age").write_bytes(sealed)
    return str(identity)
