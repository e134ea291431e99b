"""What is different on the rehearsal rig. Merged after group_data/spark.py, so it wins."""

from lab.core import FABRIC_DEVICE, FABRIC_MTU, SSH_USER, load_settings

ssh_user = SSH_USER
ssh_key = str(load_settings().ssh_key)
ssh_known_hosts_file = str(load_settings().known_hosts)

rig = load_settings().place.name
recipe = "tiny"
fabric_device = FABRIC_DEVICE
fabric_mtu = FABRIC_MTU
