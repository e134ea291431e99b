"""watch on a Kubernetes rig: what it writes on the host, and what it needs to know."""

from __future__ import annotations

from tests.plans.support.scenario import HEAD, Scenario, data, each_row, quiet, refused, scenario

WATCH = "deploys/watch.py"
ASK = ("url=http://10.96.0.10:8000", "model=qwen")


def watch(*pairs: str, how: str = "--dry") -> Scenario:
    """A run of watch against the stand-in."""
    return scenario(WATCH, how, *data(*pairs))


TABLE = {
    "dry": (watch(*ASK, "restart=true"), quiet(
        f"[{HEAD}] write /etc/rigbook/watch.json (mode 0600, owner root)",
        "enable and start rigbook-watch.timer", "start rigbook-watch.service")),
    "nothing to ask": (watch(how="-y"), refused("the watch has nothing to ask")),
    "a node": (watch(*ASK, "only=lab1", how="-y"), refused("only")),
    "two webhooks": (
        watch(*ASK, "webhook=http://127.0.0.1:1/x", "webhook_file=/root/x", how="-y"),
        refused("webhook: and webhook_file; allowed: one of them")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)
