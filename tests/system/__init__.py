"""Tests on booted hosts and machines: a package each, named for what is on the hosts."""
