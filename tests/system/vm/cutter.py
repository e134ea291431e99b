"""Runs in the test VM: node, stopped at a named point, where the test then cuts the power.

Usage: cutter.py FOLDER POINT VERB … . The points: `grubenv` (it is renamed, grub.cfg is not yet),
`renamed` and `settled` (both are, nothing is flushed; settled: the filesystem has committed by
itself, so that a rename may stand in its journal alone), `flushed` (the journal says intent still).
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from node.__main__ import main
from node.kernel import grub_step

COMMIT_S = 7  # ext4 commits every five


def here(seconds: float = 0) -> None:
    """Tells the test by the serial console, and waits for the cut."""
    time.sleep(seconds)
    Path("/dev/ttyS0").write_text("\nCUT THE POWER\n")
    time.sleep(3600)


real_put, real_flush = grub_step._put, grub_step.flush_boot


def put(folder: str, name: str, raw: bytes, mode: int) -> None:
    """grub_step's, that stops before grub.cfg."""
    if name == "grub.cfg" and point == "grubenv":
        here()
    real_put(folder, name, raw, mode)


def flush(folder: str) -> bool:
    """bootsync's, that stops before or after itself."""
    if point in ("renamed", "settled"):
        here(COMMIT_S if point == "settled" else 0)
    done = real_flush(folder)
    here()
    return done


point = sys.argv[2]
grub_step._put = put
grub_step.flush_boot = flush
sys.exit(main(sys.argv[3:]))
