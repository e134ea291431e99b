"""The pods of a Deployment: how they are doing while they start, and their restart."""
