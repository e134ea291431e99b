"""The members that make an archive an OCI layout: docker load then keeps the image's digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

BLOBS = "blobs/sha256/"


def digest_of(raw: bytes) -> str:
    """Gives the digest of bytes, as images name it."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def blob(name: str) -> str:
    """Gives the member that holds what a digest names."""
    return BLOBS + name[7:]


def layout(documents: Sequence[bytes]) -> dict[str, bytes]:
    """Gives the members by name: the image by its digest, under no name, and what leads to it.

    `documents`: the one that the image's digest names first; none gives no member.
    """
    if not documents:
        return {}
    said = json.loads(documents[0])
    shape = "index" if "manifests" in said else "manifest"
    kind = said.get("mediaType") or f"application/vnd.oci.image.{shape}.v1+json"
    row = {"mediaType": kind, "digest": digest_of(documents[0]), "size": len(documents[0])}
    return {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [row]}).encode(),
        **{blob(digest_of(raw)): raw for raw in documents},
    }
