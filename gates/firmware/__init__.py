"""A board's checklist: what keeps a headless machine from coming back."""
