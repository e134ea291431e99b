"""A shared GPU under Kubernetes: its limit and its library."""
