"""What lies on a node against what the recipe renders."""
