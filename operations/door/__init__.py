"""A narrow sudo for a rig's login: the script that root runs once on a host."""
