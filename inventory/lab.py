"""The rehearsal rig: the hosts that `make lab-up` made, in the shape of DGX Spark."""

from deploys.common.cli_guards import own_folder
from lab.core.settings import load

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
    for host in load().fabric_hosts()
]
