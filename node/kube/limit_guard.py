"""limit guard: notices that a chart was deployed again without what gpu_limit had set, and tells.

Run by a timer. Nothing is set back: whoever deployed the chart may have meant its values. It waits
while a change is open: it is then the operator's run that sets them.
"""

from __future__ import annotations

import os

from node.change import journal
from node.core import log
from node.core.errors import Json, NodeError
from node.files import state_dir, state_file
from node.kube import inspect, kubectl, limit_state
from node.kube.limit_state import State
from node.watch import config, notices

MAX_PENDING = 20


def file_path() -> str:
    """Gives where the guard's memory lies between two looks."""
    return os.path.join(state_dir.root(), "limit", "guard.json")


def save_state(memory: Json) -> None:
    """Write the memory; it is on the disk on return."""
    state_dir.ensure()
    state_file.save(file_path(), memory)


def seen(known: State) -> tuple[str, str]:
    """Gives (`set`, `reset` or `gone`, what a person reads). Raises NodeError and CannotRead when
    the cluster does not say: that is neither of them.
    """
    where = f"Deployment {known.namespace}/{known.deployment} on {known.node}"
    client = kubectl.client(known.kubectl, known.kubeconfig)
    try:
        deployment = inspect.get(client, known.namespace, known.deployment)
    except NodeError as error:
        if error.code != "no_deployment":
            raise
        return "gone", f"{where} is gone"
    lines = limit_state.differing(known, deployment)
    if not lines:
        return "set", f"{where} has again what gpu_limit set"
    return "reset", (
        f"{where} has lost what gpu_limit set: {'; '.join(lines)}; was its chart deployed again? "
        "It is left as it is; set it again with: deploys/gpu_limit.py"
    )


def inspect_limit(known: State) -> None:
    """One look: told once for each thing that is seen; the memory is written before the notices."""
    status, text = seen(known)
    if journal.operator_at_work():
        log.say("a change is open: not the guard's turn")
        return
    memory = state_file.load(file_path(), {"told": None, "pending": []})
    # what it came from is part of it: a limit that was lost once more is told once more
    now = None if status == "set" else text
    if now != memory["told"]:
        log.say(text, log.WARNING)
        memory["pending"].append(
            {"rig": known.rig, "node": known.node, "status": f"limit-{status}", "text": text}
        )
    memory["pending"] = memory["pending"][-MAX_PENDING:]
    memory["told"] = now
    save_state(memory)
    url = config.webhook_url(known.webhook, known.webhook_file)
    notices.deliver(memory["pending"], url, lambda: save_state(memory))


def run() -> None:
    """The verb: one look at what was set; nothing where nothing is guarded."""
    known = limit_state.read()
    if known is not None:
        inspect_limit(known)
