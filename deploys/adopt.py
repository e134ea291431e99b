"""adopt: what serves on these machines by other means, who starts it, and rigbook's files for it.

Runbook: docs/runbooks/adopt.md. An inventory with hosts and ssh is enough.
Data: write=NAME writes inventory, group_data and recipe from what runs, and compares them with it.
"""

from deploys.procedures.adopt import look, report, write

# Load: what is asked; the inventory may know nothing of an engine yet.
data = look.asked()

# Verify: every node is looked at, read-only; what runs, who starts it, what comes at the next boot.
seen = look.look()
report.report(seen)
write.write(seen, data.write, data.port)
