"""verify: read-only proof that the rig serves: a real chat completion, and its metrics.

Runbook: docs/runbooks/verify.md. Exit status 1 with the reason when it does not serve.
"""

from pyinfra import host, logger
from pyinfra.api.exceptions import DeployError

from deploys.support import endpoint, load, once
from facts.endpoint import ask
from facts.endpoint import metric_names as metrics

# Load: what should answer, and where.
plan = load()
where = endpoint(plan)

# Verify: nothing is changed and no host is asked; the answer is the evidence.
if host.name == plan.rig.head.name:
    answer = once("answer", lambda: ask(where))
    if not answer.ok:
        raise DeployError(
            f"{where.model} does not answer: {answer.detail}; "
            "find out why with: pyinfra INVENTORY deploys/doctor.py -y"
        )
    logger.info(f"    {where.model} answers at {where.base_url}: {answer.detail}")
    logger.info(f"    {len(metrics(where))} vllm: metrics at {where.base_url}/metrics")
