"""What verify asks of an endpoint, as one line for each thing that answers."""

from __future__ import annotations

import httpx
from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import inventory_name
from facts.endpoint.completion import Endpoint, ask, metric_names


def prove_it_serves(where: Endpoint) -> None:
    """Says what answered; DeployError (exit status 1) names what did not, and what to do."""
    answer = ask(where)
    if not answer.ok:
        raise DeployError(
            f"{where.model} does not answer: {answer.detail}; "
            f"find out why with: pyinfra {inventory_name()} deploys/doctor.py -y"
        )
    logger.info(f"    {where.model} answers at {where.base_url}: {answer.detail}")
    try:
        names = metric_names(where)
    except httpx.HTTPError as error:
        raise DeployError(
            f"{where.model} answers, but {where.base_url}/metrics does not: {error}"
        ) from None
    if not names:
        raise DeployError(f"{where.base_url}/metrics has no vllm: metric; is that a vLLM?")
    logger.info(f"    {len(names)} vllm: metrics at {where.base_url}/metrics")
