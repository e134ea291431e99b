"""What rigbook keeps on a host, and the rule by which each of it goes (docs/adr/0023)."""
