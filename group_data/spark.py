"""What is common to a rig of two DGX Spark."""

ssh_user = "milo"
# An unknown host key stops the run: log in once by hand and compare it.
ssh_strict_host_key_checking = "yes"

rig = "spark"
recipe = "deepseek-v4-flash"
fabric_device = "bond0"
fabric_mtu = 9000
