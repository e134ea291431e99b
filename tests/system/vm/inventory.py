"""The one VM of a test, as pyinfra's inventory takes it; its port and key come from the test."""

import os

tower = [
    (
        "tower",
        {
            "ssh_hostname": "127.0.0.1",
            "ssh_port": int(os.environ["RIGBOOK_VM_PORT"]),
            "ssh_user": "rig",
            "ssh_key": os.environ["RIGBOOK_VM_KEY"],
            "ssh_strict_host_key_checking": "no",
            "ssh_known_hosts_file": "/dev/null",
            "role": "head",
            "lan_address": os.environ.get("RIGBOOK_VM_ENGINE", "127.0.0.1"),
            "rig": "vm",
            "recipe": "solo",
            "recipes_dir": ["tests/system/vm/recipes"],
            # a real out-of-tree module, built for one kernel only, stands for nvidia
            "driver_module": "gpustand",
        },
    )
]
