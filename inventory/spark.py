"""Two DGX Spark on a desk, joined by one QSFP cable."""

from deploys.common.cli_guards import own_folder

own_folder()

spark = [
    (
        "spark1",
        {
            "ssh_hostname": "192.168.1.11",
            "role": "head",
            "lan_address": "192.168.1.11",
            "fabric_address": "10.0.0.1",
        },
    ),
    (
        "spark2",
        {
            "ssh_hostname": "192.168.1.12",
            "role": "worker",
            "lan_address": "192.168.1.12",
            "fabric_address": "10.0.0.2",
        },
    ),
]
