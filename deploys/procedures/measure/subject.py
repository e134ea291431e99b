"""What is measured: the engine that runs, and the nodes that it runs on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise

from pyinfra import state

from deploys.procedures.engine.measured import running_profile
from facts.engine_look import look_at_engine
from facts.observe import Looks, observe
from facts.rignode.context import real
from gates.drift.launch_files import written_argv
from schema.desired.plan import Plan
from schema.measure.run import Machine, Sample, Subject
from schema.observed.snapshot import NodeSnapshot, Unreadable

# vLLM's own, where the command line does not say.
MAX_NUM_SEQS = 256


def subject(plan: Plan) -> tuple[Subject, str]:
    """What runs now, and a line about its profile; DeployError when the head cannot tell."""
    profile, words = running_profile(plan)
    head = plan.rig.head.name
    seen = look_at_engine(real(state), (head,))[head]
    argv = written_argv(seen) if isinstance(seen, NodeSnapshot) else ()
    looks = observe(real(state), plan)
    recipe = json.dumps(plan.recipe.model_dump(mode="json"), sort_keys=True)
    made = Subject(
        rig=plan.rig.name,
        recipe=plan.recipe.name,
        recipe_sha256=hashlib.sha256(recipe.encode()).hexdigest(),
        profile=profile,
        model=plan.recipe.served_model_name,
        argv=argv,
        image=_image(plan, looks.get(head)),
    )
    return made, words


def _image(plan: Plan, seen: NodeSnapshot | Unreadable | None) -> str | None:
    """The image's digest, or its id where no registry gave it one; None for a venv."""
    box = plan.recipe.container
    if box is None or not isinstance(seen, NodeSnapshot) or isinstance(seen.docker, Unreadable):
        return None
    for image in seen.docker.images:
        if box.image in (*image.tags, *image.digests) or len(seen.docker.images) == 1:
            return image.digests[0] if image.digests else image.id
    return box.image


def machines(plan: Plan, samples: Mapping[str, list[Sample]]) -> tuple[Machine, ...]:
    """The nodes with what was seen of them."""
    looks: Looks = observe(real(state), plan)
    made = []
    for node in plan.rig.nodes:
        seen = looks.get(node.name)
        kernel = driver = None
        if isinstance(seen, NodeSnapshot):
            kernel = seen.identity.kernel
            driver = None if isinstance(seen.gpus, Unreadable) else seen.gpus.driver_version
        rows = tuple(samples.get(node.name, ()))
        made.append(Machine(node=node.name, kernel=kernel, driver=driver, samples=rows))
    return tuple(made)


def flag(argv: tuple[str, ...], name: str) -> str | None:
    """The value of a flag of the command line; None where it does not stand there."""
    return next((value for word, value in pairwise(argv) if word == name), None)


def most_streams(argv: tuple[str, ...]) -> int:
    """How many answers the engine makes at the same time."""
    return _number(argv, "--max-num-seqs") or MAX_NUM_SEQS


def longest(argv: tuple[str, ...]) -> int | None:
    """The longest prompt with its answer, in tokens; None: not told by a plain number."""
    return _number(argv, "--max-model-len")


def _number(argv: tuple[str, ...], name: str) -> int | None:
    text = flag(argv, name)
    return int(text) if text is not None and text.isdigit() else None
