"""The gate on what pip would do: asked with `pip install --dry-run`, before anything is installed.

A rebuild that resolved torch anew got the CPU wheel, and the C extension did not load (C1). The
nightly of the version that served was gone from its server: `pip freeze` could not bring it back,
only the tar could (B5). An upgrade makes a verified backup before it installs anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.observed.pip_report import PipReport, VenvWheels, parse, variant_of
from schema.recipe.wheels import WheelsSpec


def wheels(
    plan: Plan, spec: WheelsSpec, wanted: str, seen: Mapping[str, VenvWheels]
) -> list[Violation]:
    """The findings about an installation of `wanted` on every node.

    `seen` is what each node's pip said (deploys.common.ask_engine.ask_pip). A node that is not in
    it is not judged: nodes-reachable names it.
    """
    found: list[Violation] = []
    for node in plan.rig.nodes:
        if node.name in seen:
            answer = seen[node.name]
            found += _wanted(plan, spec, wanted, node.name, answer)
            found += _old(spec, node.name, answer)
    return found


def would_install(spec: WheelsSpec, answer: VenvWheels) -> str | None:
    """The version that pip would install; None: it is there already, or pip refused."""
    return _version_in(answer.wanted, spec)


def _version_in(report: str | None, spec: WheelsSpec) -> str | None:
    """The version of the engine's package in a report of pip; None: not in it, or not readable."""
    try:
        item = parse(report).item(spec.package) if report else None
    except ValueError:
        return None
    return item.metadata.version if item else None


def _wanted(
    plan: Plan, spec: WheelsSpec, wanted: str, node: str, answer: VenvWheels
) -> list[Violation]:
    if answer.wanted is None:
        return [
            violation(
                "wheel-missing",
                node,
                f"{spec.package} {wanted} cannot be had on {node}",
                evidence=f"pip {answer.pip}: {answer.wanted_error}",
                remedy=f"on {node}: {shlex.quote(answer.python)} -m pip install --dry-run "
                f"{_options(answer)}{shlex.quote(f'{spec.package}=={wanted}')}; look for "
                "the name, the Python and the platform of the wheel",
            )
        ]
    try:
        report = parse(answer.wanted)
    except ValueError as error:
        return [
            violation(
                "pip-report-unreadable",
                node,
                f"what pip would do on {node} could not be read, so nothing about it is known",
                evidence=f"pip {answer.pip}: {error}",
                remedy=f"on {node}: {shlex.quote(answer.python)} -m pip --version; "
                "22.2 and later report",
                unknown=True,
            )
        ]
    return _torch(plan, spec, node, answer, report)


def _torch(
    plan: Plan, spec: WheelsSpec, node: str, answer: VenvWheels, report: PipReport
) -> list[Violation]:
    torch = report.item("torch")
    if torch is None:
        return _torch_stays(spec, node, answer)
    now, then = answer.torch_variant(), variant_of(torch, report.environment)
    right = spec.torch_variant or now
    had = f"torch {answer.version_of('torch') or 'is not installed'} ({now or 'variant unknown'})"
    evidence = (
        f"{had} now; pip would install {torch.metadata.version} ({then}) "
        f"from {torch.file or torch.download_info.url}"
    )
    if then == "cpu" and plan.recipe.expect.needs_nvidia:
        return [_refused("torch-cpu", node, "a torch for the CPU on a rig of GPUs", evidence)]
    if right is None:
        # Nothing to compare with: a new venv, and a recipe that does not say.
        return [] if answer.version_of("torch") is None else [_unnamed(node, evidence)]
    if _same(right, then):
        return []
    whose = "the recipe wants" if spec.torch_variant else "installed is"
    text = f"a torch built for {then}, {whose} {right}"
    return [_refused("torch-variant", node, text, evidence)]


def _torch_stays(spec: WheelsSpec, node: str, answer: VenvWheels) -> list[Violation]:
    """pip leaves torch as it is: right, unless the recipe wants another one."""
    now = answer.torch_variant()
    if spec.torch_variant is None or now is None or _same(spec.torch_variant, now):
        return []
    text = f"the torch that is there, built for {now}, the recipe wants {spec.torch_variant}"
    evidence = f"torch {answer.version_of('torch')} stays"
    return [_refused("torch-variant", node, text, evidence)]


def _same(one: str, other: str) -> bool:
    """Whether two variants are one; `cu12` is any CUDA 12, because some wheels say no more."""
    short, long = sorted((one, other), key=len)
    major_only = short.startswith("cu") and len(short) == 4
    return one == other or (major_only and long.startswith(short))


def _refused(code: str, node: str, what: str, evidence: str) -> Violation:
    return violation(
        code,
        node,
        f"pip would leave {node} with {what}",
        evidence=evidence,
        remedy="name the right index or the right wheel: an extra-index-url of that CUDA version "
        "in the rig's pip configuration, or the wheel in the rig's wheel folder",
    )


def _unnamed(node: str, evidence: str) -> Violation:
    return violation(
        "torch-variant",
        node,
        f"the torch on {node} does not say what it was built for, so a change of it is not known "
        "to be safe",
        evidence=evidence,
        remedy="name it in the recipe: wheels.torch_variant, such as cu130 or cpu",
        unknown=True,
    )


def _old(spec: WheelsSpec, node: str, answer: VenvWheels) -> list[Violation]:
    """Whether the version that is installed could be installed again."""
    installed = answer.version_of(spec.package)
    if installed is None or _version_in(answer.old, spec) == installed:
        return []
    evidence = f"pip {answer.pip}: {answer.old_error or 'offers another version'}"
    return [
        violation(
            "old-wheel-missing",
            node,
            f"{spec.package} {installed} of {node} cannot be had any more: the backup is the only "
            "way back",
            evidence=evidence,
            remedy="keep the backup until the new version has been blessed and has served; a "
            "pip freeze cannot bring this one back",
        )
    ]


def _options(answer: VenvWheels) -> str:
    return "".join(f"{shlex.quote(word)} " for word in answer.args)
