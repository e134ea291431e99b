"""What a stand-in host usually answers, where a scenario says nothing else."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
# how a safetensors file begins
MAGIC = "40000000000000007b22" + "20" * 6
_NONE = {"unreadable": "no GRUB here: container"}
CONTAINER: Json = {
    "format": 1, "arch": "x86_64", "running": "6.1.0", "boot_id": "b", "loader": "container",
    "loader_evidence": "stand-in", "module": None, "kernels": [], "user_driver": [],
    "loaded": None, "grub": _NONE, "boot": _NONE, "apt": _NONE, "secure_boot": None, "took_s": 0.0,
}  # fmt: skip

HARDWARE: Json = {
    "format": 1, "virtual": "docker", "processor": "", "nics": [], "addresses": {},
    "board": {"unreadable": "no SMBIOS"}, "displays": [], "graphics": [],
    "efi": {"unreadable": "no UEFI"}, "clock": {"unreadable": "no clock"}, "clock_unix_s": 0.0,
    "sleep": {}, "attestations": [], "took_s": 0.0,
}  # fmt: skip


GROWTH = [{"what": what, "count": 2, "bytes": 3 << 20, "unreadable": None} for what in
          ("changes", "blobs", "programs", "displaced", "backups", "images")]  # fmt: skip
ACCEPTED: Json = {"outcome": "accepted", "said": "", "unsure": "", "took_s": 8.0}
# two boots, the former one ended by a reboot that was asked for; host.py never ran there
SETTINGS: Json = {
    "virtual": "none", "watchdogs": [], "runtime_watchdog_s": 0.0, "sysctls": {},
    "journal": {"persistent": True, "bytes": 8 << 20}, "pstore": None,
    "guard": {"program": None, "argv": None}, "sshd_oom_score_adj": -1000, "wanted": None,
}  # fmt: skip
BOOTS: list[Json] = [
    {"boot_id": who * 32, "first_unix_s": 1.0, "last_unix_s": 2.0, "asked_for": ended,
     "tail": [], "pstore": []} for who, ended in (("a", True), ("b", None))
]  # fmt: skip
HOST: Json = {"format": 1, "settings": SETTINGS, "boots": BOOTS, "kills": [], "took_s": 0.1}
# of a container, whose firmware is another machine's
# `former`: nothing but what rigbook runs
USUAL = {
    "hardware": HARDWARE, "growth": {"rows": GROWTH}, "host": HOST, "preflight": ACCEPTED,
    "former": {}, "shm": {"removed": [], "kept": [], "changed": False},
}  # fmt: skip
