"""Where inventories that 0.2.0 wrote look for it; new ones import it from deploys.plans.cli."""

from deploys.plans.cli import own_folder

__all__ = ["own_folder"]
