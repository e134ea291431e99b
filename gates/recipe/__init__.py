"""What a recipe chooses against the machines it is to run on."""
