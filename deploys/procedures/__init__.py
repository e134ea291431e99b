"""What the runbooks decide, by capability; a runbook and its procedure share the name."""
