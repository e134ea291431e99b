"""The GPU tier's rig: one host beside the operator, on a machine with a real NVIDIA GPU."""

from lab.gpu import HOST

tower = [("gputower", {"ssh_hostname": HOST, "role": "head", "lan_address": HOST})]
