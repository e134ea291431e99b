"""A Deployment through kubectl: what it is, one value of it changed, its pods."""
