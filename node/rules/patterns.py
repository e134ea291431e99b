"""Patterns of names and digests; each side says in its own words what is wrong."""

from __future__ import annotations

import re

# an RDMA device, of /sys/class/infiniband
HCA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")
# IFNAMSIZ: 15 characters; a colon for an alias, `@` for a VLAN's parent
DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,14}\Z")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# a pod's processes: kubepods.slice/… of systemd's driver, kubepods/… of cgroupfs
# (kubernetes, pkg/kubelet/cm/cgroup_manager_linux.go)
POD_CGROUP = re.compile(r"(?:^|/)kubepods[./-]")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
# Units that hold a login's processes, or what a line of a crontab started: they supervise nothing,
# whatever they outlive is an orphan.
LOGIN_UNIT = re.compile(r"(sshd?(@.*)?|user@\d+|getty@.*|crond?|anacron|atd)\.service\Z")
# the module that serves as `vllm serve` does: a word behind -m, or the file
API_SERVER = re.compile(r"^vllm\.entrypoints\.(?:openai\.)?api_server$|/api_server\.py$")


def printable(text: str) -> str:
    """Gives the text as one line that a terminal only shows: what a host says may hold escapes."""
    return "".join(char if char.isprintable() else "?" for char in text)
