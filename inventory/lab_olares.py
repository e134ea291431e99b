"""The rehearsal rig in the shape of an Olares One: the lab's first host, and the lab's cluster."""

from lab.core import load_settings

olares = [
    (
        host.name,
        {"ssh_hostname": host.address, "lan_address": host.address},
    )
    for host in load_settings().hosts()[:1]
]
