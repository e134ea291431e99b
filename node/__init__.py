"""The program on a host: standard library only, Python 3.10 to 3.13 (docs/reference/node.md)."""
