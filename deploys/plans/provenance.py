"""What provenance tells of the artefacts of a rig, and of commits in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans.engine import ask_artifacts, venv_of
from deploys.plans.rig import Procedure, once_a_run, report_load_and_gate
from gates.artifact import image_name
from gates.core import Violation, blocking
from gates.provenance import Answer, Evidence, decide, findings, read_build_metadata
from schema.artifact import ArtifactAnswer
from schema.keys import ProvenanceData
from schema.plan import Plan


@once_a_run
def report(rig: Procedure) -> None:
    """Reads the artefact of every node and tells what is in it, once a run; DeployError when it is
    not fit for this rig (exit status 1), or cannot be read.
    """
    plan, data = rig.plan, rig.data(ProvenanceData)
    seen = ask_artifacts(state, plan)
    evidence = {node: read_build_metadata(answers) for node, answers in seen.items()}
    commits = {
        node: [decide(one, found) for one in data.commits] for node, found in evidence.items()
    }
    wrong = [
        v
        for node, found in evidence.items()
        for v in findings(plan, node, found, seen[node], plan.recipe.modules)
    ]
    if data.as_json:
        print(json.dumps(_document(plan, evidence, commits, wrong), indent=2))
    else:
        for node, found in evidence.items():
            _say(plan, node, found, seen[node], commits[node])
        for violation in wrong:
            report_load_and_gate(violation)
        _conclude(commits)
    stops = blocking(wrong)
    if stops:
        raise DeployError(
            f"{len(stops)} finding(s); first {stops[0].code} on {stops[0].node}: {stops[0].summary}"
        )


def artefact(plan: Plan, node: str) -> str:
    """What is looked at on a node: the image's reference, or the venv's folder."""
    venv = venv_of(plan, node)
    return f"venv {venv}" if venv else f"image {image_name(plan)}"


def _say(
    plan: Plan,
    node: str,
    found: Evidence,
    answers: Sequence[ArtifactAnswer],
    commits: Sequence[Answer],
) -> None:
    for line in lines(plan, node, found, answers):
        logger.info(f"    [{node}] {line}")
    for answer in commits:
        logger.info(f"    [{node}] {answer}")


def lines(plan: Plan, node: str, found: Evidence, answers: Sequence[ArtifactAnswer]) -> list[str]:
    """What an artefact is made of, a line each; what does not say so says that it does not."""
    told = [
        artefact(plan, node),
        f"vLLM {found.vllm_version or 'of no known version'}, commit "
        f"{found.vllm_commit or 'not told'} ({found.library or 'no vllm package found'})",
        f"torch {found.torch_version or 'not found'} ({found.torch_variant or 'variant not told'})",
        f"installed from {found.direct_url}"
        if found.direct_url
        else "no direct_url.json: pip took "
        "the engine from an index, or it was not installed by pip",
        *([] if found.builds else ["no build-metadata.yaml"]),
        *found.problems,
    ]
    for path, said in found.builds.items():
        told += [f"{path}:", *(f"  {key}: {value}" for key, value in said.items() if value)]
    for patch in plan.recipe.patches:
        rows = [f for a in answers if (a.path, a.contains) == (patch.path, patch.contains)
                for f in a.files]  # fmt: skip
        if rows:
            times = ", ".join(f"{row.count} in {row.path}" for row in rows)
            told.append(f"patch {patch.id}: {patch.contains!r} {times}; right: {patch.count}")
    return told


def _conclude(commits: Mapping[str, Sequence[Answer]]) -> None:
    """What the answers mean for a rebuild."""
    answers = [answer for row in commits.values() for answer in row]
    if not answers:
        return
    if all(answer.verdict == "in" for answer in answers):
        logger.info("    all of it is in already: a rebuild for these would bring nothing")
    else:
        logger.info("    nothing is known to be missing: no reason for a rebuild yet")


def _document(
    plan: Plan,
    evidence: Mapping[str, Evidence],
    commits: Mapping[str, Sequence[Answer]],
    wrong: Sequence[Violation],
) -> dict[str, object]:
    return {
        node: {
            "artefact": artefact(plan, node),
            **asdict(found),
            "torch_variant": found.torch_variant,
            "asked": [asdict(answer) for answer in commits[node]],
            "findings": [
                {"code": v.code, "summary": v.summary, "evidence": v.evidence, "remedy": v.remedy}
                for v in wrong
                if v.node == node
            ],
        }
        for node, found in evidence.items()
    }
