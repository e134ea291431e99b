"""An Olares One: one Kubernetes node whose GPU is shared by HAMi."""

olares = [
    (
        "olares-one",
        {
            "ssh_hostname": "192.168.1.31",
            "lan_address": "192.168.1.31",
        },
    ),
]
