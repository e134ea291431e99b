"""What is different on the rehearsal host. Merged after group_data/olares.py, so it wins."""

from lab.core.settings import SSH_USER, load

ssh_user = SSH_USER
ssh_key = str(load().ssh_key)
ssh_known_hosts_file = str(load().known_hosts)

rig = f"{load().place.name}-olares"
# The rehearsal host has no GPU.
needs_nvidia = False
namespace = "default"
kubeconfig = "/etc/rigbook-lab-kubeconfig"
deployment = "lucebox"
container = "engine"
