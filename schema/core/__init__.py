"""Base types, one-line errors, quoting, YAML without surprises."""
