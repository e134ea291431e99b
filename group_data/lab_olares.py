"""What is different on the rehearsal host. Merged after group_data/olares.py, so it wins."""

from lab.core import SSH_USER, load_settings

ssh_user = SSH_USER
ssh_key = str(load_settings().ssh_key)
ssh_known_hosts_file = str(load_settings().known_hosts)

rig = f"{load_settings().place.name}-olares"
# The rehearsal host has no GPU.
needs_nvidia = False
namespace = "default"
kubeconfig = "/etc/rigbook-lab-kubeconfig"
deployment = "lucebox"
container = "engine"
