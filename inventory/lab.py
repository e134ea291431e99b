"""The rehearsal rig: the hosts that `make lab-up` made, in the shape of two DGX Spark."""

from deploys.common.cli_guards import own_folder
from lab.core.settings import load

own_folder()

# Two hosts have an end of the fabric link; any further ones are not part of the rig.
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
    for host in load().hosts()
    if host.has_fabric
]
