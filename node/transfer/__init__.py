"""The authenticated stream between two nodes: protocol, server, client, spool."""
