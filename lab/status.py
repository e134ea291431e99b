"""What there is: hosts with their processes and addresses, and what the cache holds."""

from __future__ import annotations

from lab.core import cache, console
from lab.core.settings import FABRIC_DEVICE, LabSettings
from lab.hosts import network
from lab.hosts import state as hosts_state


def show(settings: LabSettings) -> None:
    """Print a table of the hosts and one of the cache."""
    if settings.state_file.exists():
        print(f"{'HOST':6} {'STATE':9} {'LAN':12} {'FABRIC':22} {'SUPERVISOR':>10} "
              f"{'PID 1':>8} {'BOOTS':>5}  DISK")  # fmt: skip
        for host in settings.hosts():
            state = hosts_state.read(settings, host)
            leader = state.live_leader()
            plugged = leader and FABRIC_DEVICE in network.devices_of(leader.pid)
            fabric = f"{host.fabric_address} {'plugged' if plugged else 'unplugged'}"
            size = console.human(cache.disk_usage(settings.host_dir(host) / "upper"))
            print(f"{host.name:6} {state.word():9} {host.address:12} "
                  f"{fabric if host.has_fabric else '-':22} "
                  f"{state.supervisor.pid if state.supervisor else '-':>10} "
                  f"{leader.pid if leader else '-':>8} {state.boots:>5}  {size}")  # fmt: skip
    else:
        print(f"no lab ({settings.home} holds none)")
    for folder in (settings.roots, settings.images):
        for path in sorted(folder.glob("[!.]*")) if folder.is_dir() else []:
            if path.suffix != ".log":
                print(f"cached {path.name}: {console.human(cache.disk_usage(path))}")
