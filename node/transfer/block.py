"""How much of a transfer goes in one piece; apart, because docker's layers need no more of it."""

BLOCK = 1 << 20
