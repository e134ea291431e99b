"""The causes that lie in the machine itself: GPUs, links, disks, kernel (gates/health)."""

from __future__ import annotations

from gates.doctor.cause import DOWN, STOPS, UNSERVED, Cause

OF_MACHINE: dict[str, Cause] = {
    "kernel-crash": Cause(
        "a fault of the kernel, of a driver or of the memory; its lines name which",
        here=("task-hung", *DOWN),
        anywhere=UNSERVED,
    ),
    "machine-check": Cause("memory, a processor or its power that fails", here=("kernel-crash",)),
    "task-hung": Cause("a driver or a disk that does not answer the kernel", **STOPS),
    "pcie-errors": Cause(
        "a riser, a slot or a card with a bad contact, or a slot that is too fast for it",
        here=("pcie-link", "gpu-lost", "nic-errors", "rdma-rate", *DOWN),
        anywhere=UNSERVED,
    ),
    "pcie-link": Cause(
        "a card that is not seated well, a riser, or a BIOS's setting of the slot",
        anywhere=("answer-slow",),
    ),
    "gpu-lost": Cause(
        "a card or its power that fails; a hang of its firmware",
        here=("driver-missing", "gpu-xid", "memory-short", *DOWN),
        anywhere=UNSERVED,
    ),
    "driver-version": Cause("another version than the lists have, or lists that are old"),
    "driver-plan": Cause("packages of others that depend on the driver, or a half-moved archive"),
    "driver-dpkg": Cause("an apt that was cut off, or one that is at work"),
    "driver-old-gone": Cause("the archive deletes a release once the next is there"),
    "driver-users": Cause("a desktop, or programs of others on the GPU"),
    "driver-headers": Cause("a kernel that was installed without its headers"),
    "driver-unsigned": Cause("Secure Boot, and a key that nobody has enrolled"),
    "driver-room": Cause("old packages and backups"),
    "driver-library": Cause(
        "apt upgraded the driver's libraries while the module ran (D12)",
        here=("driver-missing", "cdi-stale", *DOWN),
        anywhere=UNSERVED,
    ),
    "gpu-xid": Cause("the Xid tells it", **STOPS),
    "gpu-memory-errors": Cause("memory of the card that wears out", here=("gpu-xid", *DOWN)),
    "gpu-throttled": Cause("heat, or power that the card does not get", anywhere=("answer-slow",)),
    "gpu-hot": Cause("fans, dust, or a warm room", here=("gpu-throttled",)),
    "persistence-off": Cause("nvidia-persistenced is not installed or not enabled"),
    "nic-errors": Cause(
        "a cable, a transceiver or a port that goes bad; or a peer that has just rebooted",
        here=("bond-slave-down",),
        anywhere=("fabric-ping", *UNSERVED),
    ),
    "nic-firmware": Cause("one node was updated, the other not"),
    "fabric-volatile": Cause("it was set by hand, with `ip addr add`"),
    "disk-errors": Cause(
        "a disk that dies, or its cable", here=("disk-read-only", "journal-broken", *DOWN)
    ),
    "disk-read-only": Cause(
        "its kernel met an error and stopped writing",
        here=("journal-broken", "change-open", *DOWN),
        anywhere=UNSERVED,
    ),
    "disk-wear": Cause("it is worn out or fails", here=("disk-errors",)),
    "cdi-stale": Cause("the driver was upgraded, and the spec not made anew (D13)", **STOPS),
}
