"""What kind of file a model's first bytes tell."""

from __future__ import annotations

# the loader of safetensors refuses a longer header
MAX_JSON = 100_000_000
POINTER = "a git-lfs pointer, not the file itself"


def format_of(head: bytes) -> str:
    """Gives the format that a file's first 16 bytes tell: `gguf`, `safetensors`, or what it is.

    safetensors: 8 bytes little-endian length of a JSON header, then `{`. A clone without git-lfs
    leaves text pointers of 130 bytes. A PyTorch checkpoint is a zip.
    """
    if head.startswith(b"GGUF"):
        return "gguf"
    if head.startswith(b"version https://"):
        return POINTER
    if head.startswith(b"PK\x03\x04"):
        return "a PyTorch zip"
    if len(head) > 8 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= MAX_JSON:
        return "safetensors"
    if not head.strip(b"\0"):
        return "empty or zeroes, as an unfinished download leaves it"
    return f"unknown (starts with {head[:8].hex()})"
