"""Error counters of RDMA ports and network cards, as what was added since an earlier reading.

A counter starts at the boot or when its driver loads, so its value alone says nothing of now. The
earlier reading is the watch's where it keeps one of this boot, else one of a moment before.
"""

from __future__ import annotations

import os
import time

from node.core import proc
from node.core.errors import Json
from node.files import state_dir, state_file

RDMA, NET = "/sys/class/infiniband", "/sys/class/net"
WAIT_S = 0.15
MAX_AGE_S = 3600.0
# Documentation/ABI/stable/sysfs-class-infiniband; hw_counters are mlx5's
_PORT = ("counters/link_downed", "counters/symbol_error", "counters/link_error_recovery",
         "hw_counters/rnr_nak_retry_err", "hw_counters/roce_slow_restart",
         "hw_counters/packet_seq_err")  # fmt: skip
EMPTY: Json = {"format": 1, "boot": "", "unix_s": 0.0, "values": {}}


def _folder(path: str) -> list[str]:
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def values(rdma: str = RDMA, net: str = NET) -> dict[str, int]:
    """Gives every counter by `DEVICE/PORT NAME` or `LINK NAME`; links are those with a card."""
    paths = {
        f"{device}/{port} {name.rpartition('/')[2]}": f"{rdma}/{device}/ports/{port}/{name}"
        for device in _folder(rdma)
        for port in _folder(f"{rdma}/{device}/ports")
        for name in _PORT
    }
    paths |= {
        f"{link} carrier_changes": f"{net}/{link}/carrier_changes"
        for link in _folder(net)
        if os.path.exists(f"{net}/{link}/device")
    }
    texts = {key: proc.read_text(path) for key, path in paths.items()}
    return {key: int(text) for key, text in texts.items() if text.isdigit()}


def path() -> str:
    """Gives where the watch's reading lies."""
    return os.path.join(state_dir.root(), "watch", "counters.json")


def keep() -> None:
    """Keep a reading for later differences (the watch, at each of its looks)."""
    now = {**EMPTY, "boot": proc.boot_id(), "unix_s": time.time(), "values": values()}
    state_file.save(path(), now)


def read() -> Json:
    """Gives what each counter grew by, and over how many seconds."""
    kept = state_file.load(path(), EMPTY)
    age = time.time() - kept["unix_s"]
    if kept["boot"] != proc.boot_id() or not WAIT_S <= age < MAX_AGE_S:
        kept = {"unix_s": time.time(), "values": values()}
        time.sleep(WAIT_S if kept["values"] else 0)
    now = values()
    then = kept["values"]
    grew = {key: value - then[key] for key, value in now.items() if value > then.get(key, value)}
    return {"seconds": round(max(time.time() - kept["unix_s"], 0.001), 3), "grew": grew}
