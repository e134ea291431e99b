"""adopt: what serves on these machines by other means, who starts it, and taking it over.

Runbook: docs/runbooks/adopt.md. An inventory with hosts and ssh is enough for a look.
Data: write=NAME writes inventory, group_data and recipe from what runs, and compares them with it;
take=true hands it over as one change; port=N says which engine, where a node runs several.
"""

from deploys.plans import adopt

# Load: what is asked; the inventory may know nothing of an engine yet.
data = adopt.asked()

if data.take:
    # Gate, Act, Verify: of all nodes, as one change.
    adopt.over()
else:
    # Verify: every node is looked at, read-only; then files are written, or compared.
    seen = adopt.look()
    adopt.report_adopt(seen)
    adopt.write(seen, data.write, data.port)
