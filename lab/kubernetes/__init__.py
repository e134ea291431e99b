"""A Kubernetes control plane built from Debian's source, on a lab host."""
