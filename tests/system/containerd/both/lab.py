"""Two of the hosts as a rig: the containerd store on both."""

from lab.core import load_settings

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
    for host in load_settings().fabric_hosts()[1:]
]
