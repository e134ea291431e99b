"""Small facts about a host itself."""

from __future__ import annotations

from pyinfra.api import FactBase


class BootId(FactBase[str]):
    """Which boot a host is in: /proc/sys/kernel/random/boot_id."""

    def command(self) -> str:
        """One read."""
        return "cat /proc/sys/kernel/random/boot_id"

    def process(self, output: list[str]) -> str:
        """The id as text."""
        return output[0].strip()
