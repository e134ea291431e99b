"""What holds for every rig, whatever its inventory says."""

# An unknown host key stops the run: log in once by hand and compare it. pyinfra's own default takes
# any key at the first contact, and sudo, tokens and API keys go over that line.
ssh_strict_host_key_checking = "yes"
