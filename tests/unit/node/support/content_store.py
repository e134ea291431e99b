"""containerd's content store as files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.rules.oci_layout import digest_of

BLOBS = "io.containerd.content.v1.content/blobs/sha256"


@dataclass
class Store:
    """A content store as containerd lays it out."""

    root: Path
    blobs: dict[str, bytes] = field(default_factory=dict)

    def put(self, raw: bytes) -> str:
        """Stores a blob; its digest."""
        name = digest_of(raw)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(raw)
        return name

    def path(self, name: str) -> Path:
        """A blob's file."""
        return self.root / BLOBS / name[7:]

    def document(self, **said: Any) -> str:
        """Stores a document; its digest."""
        return self.put(json.dumps(said).encode())

    def manifest(self, diff_ids: list[str], layers: list[bytes], **config: Any) -> str:
        """Stores an image; the digest of its manifest."""
        made = self.document(rootfs={"diff_ids": diff_ids}, **config)
        rows = [{"digest": self.put(raw), "size": len(raw)} for raw in layers]
        return self.document(config={"digest": made}, layers=rows)

    def read(self, name: str) -> Any:
        """A document of the store."""
        return json.loads(self.path(name).read_bytes())
