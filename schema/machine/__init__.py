"""About a board or host itself: attestations, checklists, wake-up data, what keeps it alive."""
