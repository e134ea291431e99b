"""All findings of a rig, ordered by layer and likely cause."""
