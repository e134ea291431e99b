"""A tower with two RTX 5060 Ti: one machine, its engine in a venv under systemd."""

tower = [
    (
        "tower",
        {
            "ssh_hostname": "192.168.1.21",
            "role": "head",
            "lan_address": "192.168.1.21",
        },
    ),
]
