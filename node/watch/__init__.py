"""The watch: asks for an answer on a timer and tells who wants to know."""
