"""What is different on the rehearsal tower. Merged after group_data/tower.py, so it wins."""

from lab.core.settings import SSH_USER, load

ssh_user = SSH_USER
ssh_key = str(load().ssh_key)
ssh_known_hosts_file = str(load().known_hosts)

rig = f"{load().place.name}tower"
recipe = "tiny-venv"
