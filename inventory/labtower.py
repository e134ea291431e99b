"""The rehearsal tower: the host that `python -m lab up --tower` made, in the shape of a tower."""

from lab.core import load_settings

# Before there is a lab its address is known all the same.
tower = [
    (
        host.name,
        {"ssh_hostname": host.address, "role": "head", "lan_address": host.address},
    )
    for host in [host for host in load_settings().hosts() if host.is_tower]
    or load_settings().place.towers(1)
]
