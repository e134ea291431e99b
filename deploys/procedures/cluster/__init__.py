"""A rig on Kubernetes: the Deployment, the shared GPU's library and its limit."""
