"""What is different on the rehearsal tower. Merged after group_data/tower.py, so it wins."""

from lab.core import SSH_USER, load_settings

ssh_user = SSH_USER
ssh_key = str(load_settings().ssh_key)
ssh_known_hosts_file = str(load_settings().known_hosts)

rig = f"{load_settings().place.name}tower"
recipe = "tiny-venv"
