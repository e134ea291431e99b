"""The rehearsal rig: the hosts that `make lab-up` made, in the shape of DGX Spark."""

from deploys.plans.cli import own_folder
from lab.core import load_settings

own_folder()

spark = [
    (
        host.name,
        {
            "ssh_hostname": host.address,
            "role": "head" if host.number == 1 else "worker",
            "rank": host.number - 1,
            "lan_address": host.address,
            "fabric_address": host.fabric_address,
        },
    )
    for host in load_settings().fabric_hosts()
]
