"""Two of the hosts as a rig: the containerd store on both."""

from lab.core.settings import load

spark = [
    (
        host.name,
        {
            "ssh_hostname": host.address,
            "role": "head" if host.number == 2 else "worker",
            "lan_address": host.address,
            "fabric_address": host.fabric_address,
        },
    )
    for host in load().fabric_hosts()[1:]
]
