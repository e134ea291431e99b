"""The engine's life on a host: before its start, its answer, its peers, its memory."""
