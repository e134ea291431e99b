"""The only way to node: packs the program, sends it with a request, types its answer."""
