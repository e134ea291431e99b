"""A private folder in memory for what is made to be looked at."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

# a folder that a kill left; nothing that is made so takes that long
STALE_S = 600.0


@contextlib.contextmanager
def private_folder(prefix: str) -> Iterator[str]:
    """A folder of ours alone, gone afterwards; those of this prefix that a kill left go as well."""
    parent = "/run" if os.access("/run", os.W_OK) else tempfile.gettempdir()
    for old in glob.glob(f"{parent}/{prefix}*"):
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(old).st_mtime > STALE_S:
                shutil.rmtree(old, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
