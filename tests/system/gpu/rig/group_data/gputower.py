"""What is different on the GPU tier's host. Merged after group_data/tower.py, so it wins."""

from lab.gpu import BASE

ssh_user = "rig"
ssh_key = str(BASE / "keys" / "login")
ssh_known_hosts_file = str(BASE / "keys" / "known_hosts")

rig = "gputower"
recipe = "gpu-venv"
