"""The causes of what is wrong with the next boot: rows of gates/doctor/causes.py."""

from __future__ import annotations

from gates.doctor.cause import Cause

BOOT_CAUSES: dict[str, Cause] = {
    "hardware-unreadable": Cause("the host did not say what its board and its cards are"),
    "hands-needed": Cause("nobody has said that this board comes back by itself"),
    "wol-card": Cause("the LAN address moved, or the card was named wrongly"),
    "wol-unarmed": Cause("the driver's default, or an update, left Wake-on-LAN off"),
    "boot-unknown": Cause("a boot loader or a menu that rigbook cannot read"),
    "boot-no-kernel": Cause("a kernel package that was removed, or cut off by a full /boot"),
    "boot-no-driver": Cause(
        "apt staged a newer kernel, and no driver module was built for it (B4)",
        here=("pin-gone",),
    ),
    "boot-room": Cause("old kernels that nobody removed"),
    "boot-sticky": Cause("GRUB writes on plain partitions only"),
    "grubenv-bad": Cause("a power cut while grub-editenv wrote it, or never made"),
    "not-pinned": Cause("never pinned, or the default was changed since"),
    "pin-entry": Cause("another name than the installed kernel's, or a menu that was edited"),
    "pin-gone": Cause("the pinned kernel's package was removed, or its title was translated"),
    "pin-no-driver": Cause("no module was built for it, or the driver was updated alone"),
}
