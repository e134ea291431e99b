"""The rehearsal rig with its roles swapped: the host on the containerd store is the head."""

from lab.core.settings import load

spark = [
    (
        host.name,
        {
            "ssh_hostname": host.address,
            "role": "worker" if host.number == 1 else "head",
            "lan_address": host.address,
            "fabric_address": host.fabric_address,
        },
    )
    for host in load().fabric_hosts()[:2]
]
