"""age, on the operator's machine: it encrypts what leaves the rig, and decrypts what comes back.

Both pass through memory: nothing in clear is written here.
"""

from __future__ import annotations

import shutil
import subprocess

from operations.change.node_call import StepFailed

MISSING = (
    "age is not installed on this machine; it encrypts what leaves the rig: "
    "sudo apt-get install age"
)


def missing() -> bool:
    """Whether this machine has no age."""
    return shutil.which("age") is None


def seal(clear: bytes, recipient: str) -> bytes:
    """What only the identity of `recipient` opens. StepFailed with age's own words."""
    return _run(["age", "-r", recipient], clear)


def unseal(sealed: bytes, identity: str, what: str) -> bytes:
    """What was sealed as `what`, by the identity in a file. StepFailed with age's own words."""
    try:
        return _run(["age", "-d", "-i", identity], sealed)
    except StepFailed as error:
        raise StepFailed(f"{what}: {error}") from None


def _run(argv: list[str], raw: bytes) -> bytes:
    try:
        done = subprocess.run(argv, input=raw, capture_output=True, check=False)
    except FileNotFoundError:
        raise StepFailed(MISSING) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise StepFailed(said[0] if said else f"age ended with {done.returncode}")
    return done.stdout
