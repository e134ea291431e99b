"""What is common to a tower that serves alone."""

ssh_user = "milo"
# An unknown host key stops the run: log in once by hand and compare it.
ssh_strict_host_key_checking = "yes"

rig = "tower"
recipe = "qwen3.6-27b"
