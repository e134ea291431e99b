"""Two of the hosts as a rig: docker's own store at the head, the containerd store at the worker."""

from lab.core import load_settings

spark = [
    (
        host.name,
        {
            "ssh_hostname": host.address,
            "role": "head" if host.number == 1 else "worker",
            "lan_address": host.address,
            "fabric_address": host.fabric_address,
        },
    )
    for host in load_settings().fabric_hosts()[:2]
]
