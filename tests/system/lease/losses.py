"""The twelve losses, each made for real on a host, and what it mends by itself.

A loss that cuts the operator off runs as a transient unit of the host, which mends it when the
lease and the return are over. `{operator}` is the operator's address, `{peers}` those of the
other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

# the shortest that is taken
LEASE_S = 45
# how long a loss lasts: the lease, the agreement, and the return with an engine's start. A run that
# comes back later is refused by the promise.
LASTS_S = 120
STATE = "/var/lib/rigbook"
_LAN = "lan=$(ip -o route get {operator} | sed 's/.* dev \\([^ ]*\\) .*/\\1/')"
_SMALL = "/run/rigbook-lease-small"


@dataclass(frozen=True)
class Loss:
    """What is lost: `script` on the hosts (`all` or the `last`), and what becomes of the operator's
    process: it `lives`, is `killed`, or is `asleep` (SIGSTOP, and SIGCONT at the end). `before` is
    made ahead of the run. `power` is a reboot or a cut of the last host.
    """

    script: str = ""
    where: str = "all"
    operator: str = "lives"
    before: str = ""
    after: str = ""
    power: str = ""


LOSSES = {
    "cable out": Loss(
        f"{_LAN}; ip link set $lan down; sleep {{s}}; ip link set $lan up; "
        "networkctl reconfigure $lan 2>/dev/null || true"
    ),
    "sshd stopped": Loss(
        "systemctl stop ssh.socket ssh.service; loginctl terminate-user {login}; sleep {s}; "
        "systemctl start ssh.service"
    ),
    "route gone": Loss(
        "ip route replace blackhole {operator}/32; sleep {s}; ip route del blackhole {operator}/32"
    ),
    "MTU lowered": Loss(
        f"{_LAN}; was=$(cat /sys/class/net/$lan/mtu); ip link set $lan mtu 400; sleep {{s}}; "
        "ip link set $lan mtu $was"
    ),
    "sudo broken": Loss("chmod 0 /usr/bin/sudo; sleep {s}; chmod 4755 /usr/bin/sudo"),
    "disk full": Loss(
        f"dd if=/dev/zero of={STATE}/full bs=64k 2>/dev/null; sleep {{s}}; rm -f {STATE}/full",
        operator="killed",
        before=f"mkdir -p {_SMALL} {STATE}; "
        f"mount -t tmpfs -o size=$(($(du -sm {STATE} | cut -f1) + 192))m tmpfs {_SMALL}; "
        f"cp -a {STATE}/. {_SMALL}/; mount --bind {_SMALL} {STATE}",
        after=f"rm -f {STATE}/full; umount {STATE}; cp -a {_SMALL}/. {STATE}/; umount {_SMALL}",
    ),
    "operator killed": Loss(operator="killed"),
    "laptop asleep": Loss(operator="asleep"),
    "nodes cut from each other": Loss(
        "for peer in {peers}; do iptables -I INPUT -s $peer -j DROP; done; sleep 120; "
        "for peer in {peers}; do iptables -D INPUT -s $peer -j DROP; done",
        operator="killed",
    ),
    "reboot inside the lease": Loss(operator="killed", where="last", power="reboot"),
    "power cut of one node": Loss(operator="killed", where="last", power="cut"),
    "clock jump": Loss("{jump}", operator="killed", where="last"),
}
