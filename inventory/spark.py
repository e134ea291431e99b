"""Two DGX Spark on a desk, joined by one QSFP cable."""

from deploys.plans.cli import own_folder

own_folder()

# A node whose cable is in another port than the rig's has a fabric_device and hcas of its own.

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
