"""Records about a board that outlive a run: attestations, checklists, wake-up data."""
