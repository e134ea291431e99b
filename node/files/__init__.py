"""Files that are old or new and never half: atomic writes, locks, the state folder."""
