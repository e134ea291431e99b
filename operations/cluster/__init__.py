"""A Deployment and the shared GPU's library."""
