"""The rehearsal rig with its roles swapped: the host on the containerd store is the head."""

from lab.core import load_settings

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
    for host in load_settings().fabric_hosts()[:2]
]
