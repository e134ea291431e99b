"""The rehearsal rig: systemd-nspawn hosts, a fabric link and the real engine on this machine."""

from __future__ import annotations
