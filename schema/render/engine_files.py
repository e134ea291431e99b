"""The files that land on a node for its engine, rendered from templates/."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from node.rules.env_text import environment_value
from node.rules.secret import SECRETS_PATH
from schema.core.errors import SpecError
from schema.core.quoting import shell_lines, systemd_lines
from schema.core.strings import single_line
from schema.desired.plan import (
    CONTAINER,
    ENGINE_DIR,
    PAIR_SERVICE,
    PAIR_TIMER,
    UNIT,
    Document,
    EngineSpec,
)
from schema.desired.rig import Node, Rig
from schema.recipe.recipe import Recipe
from schema.recipe.secrets import LOADS_CODE
from schema.render import node_program
from schema.render.gpu_access import gpu_arguments
from schema.render.node_json import node_file
from schema.render.start_budget import STARTS, times

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
SCRIPT_PATH = f"{ENGINE_DIR}/serve.sh"
ENV_PATH = f"{ENGINE_DIR}/engine.env"
NODE_PATH = f"{ENGINE_DIR}/node.json"
UNITS_DIR = "/etc/systemd/system"
UNIT_PATH = f"{UNITS_DIR}/{UNIT}"
PAIR_SERVICE_PATH = f"{UNITS_DIR}/{PAIR_SERVICE}"
PAIR_TIMER_PATH = f"{UNITS_DIR}/{PAIR_TIMER}"
SCRIPT_IN_CONTAINER = "/rigbook/serve.sh"
# Half of the machine's memory on top, for the kernel's choice (proc(5)).
OOM_SCORE_ADJ = 500
# root's lines in a unit with a user: systemd gives them that user's HOME and the engine's variables
CLEAN = "/usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def documents(
    rig: Rig, node: Node, recipe: Recipe, profile: str, spec: EngineSpec
) -> tuple[Document, ...]:
    """What lands on `node` for its engine, in this order: the launch script, the environment
    file, the unit, node.json, and on rigs of several nodes the pair check and its timer.

    docker reads the environment file raw, systemd (for a venv) with quotes; it is root's alone.
    The recipe's secrets stand in a file beside it, which the node renders (SECRETS_PATH).
    SpecError when a value has no form in it.
    """
    names: dict[str, object] = {
        "recipe": recipe.name,
        "profile": profile,
        "role": node.role,
        "rank": node.rank,
        "rig": rig.name,
    }
    venv = shlex.quote(spec.venv) if spec.venv else None
    environ, alone = _env_file(spec.environ, recipe.name), {}
    if spec.venv is not None:
        # the unit's environment is also that of its root lines: what loads code stays out of it
        alone = {name: shlex.quote(environ[name]) for name in environ if LOADS_CODE.match(name)}
        environ = {name: environment_value(value) for name, value in environ.items()
                   if name not in alone}  # fmt: skip
    script = render(SCRIPT_PATH, **names, command=shell_lines(spec.argv), venv=venv, alone=alone)
    environment = render(ENV_PATH, environ=environ)
    unit = _unit(rig, node, recipe, profile, spec, names)
    files = (
        Document(SCRIPT_PATH, script, "0755"),
        Document(ENV_PATH, environment, "0600"),
        Document(UNIT_PATH, unit, "0644"),
        Document(NODE_PATH, node_file(rig, node, recipe, spec), "0644"),
    )
    if len(rig.nodes) == 1:
        return files
    pair = (PAIR_SERVICE_PATH, PAIR_TIMER_PATH)
    return files + tuple(Document(path, render(path, rig=rig.name), "0644") for path in pair)


def _unit(
    rig: Rig,
    node: Node,
    recipe: Recipe,
    profile: str,
    spec: EngineSpec,
    names: dict[str, object],
) -> str:
    """The text of the engine's unit, of the template for the recipe's runtime."""
    common = {**names, "container": CONTAINER, "times": times(rig, node, recipe), "starts": STARTS}
    if recipe.container is None:
        paths = {"script": SCRIPT_PATH, "environments": env_files(recipe), "user": spec.user,
                 "clean": CLEAN, "oom_score_adj": OOM_SCORE_ADJ}  # fmt: skip
        return render(f"{UNIT_PATH}.venv", **common, **paths)
    run = systemd_lines(docker_run(recipe, profile, spec))
    return render(UNIT_PATH, **common, docker_run=run)


def env_files(recipe: Recipe) -> list[str]:
    """The files that the engine's environment is read from."""
    return [ENV_PATH, SECRETS_PATH] if recipe.secrets else [ENV_PATH]


def docker_run(recipe: Recipe, profile: str, spec: EngineSpec) -> list[list[str]]:
    """The engine's `docker run`, as groups of arguments that stand on one line each.

    systemd is the only supervisor, so docker's restart policy is `no`. The launch script and the
    environment come from the host: what lives in a container's own layer is gone after a restart.
    SpecError for a recipe whose engine lives in a venv.
    """
    box = recipe.container
    if box is None:
        raise SpecError(f"recipe {recipe.name}: container: is missing; allowed: one, for docker")
    groups = [
        ["/usr/bin/docker", "run"],
        ["--name", CONTAINER],
        ["--rm", "--restart", "no", "--init"],
        ["--network", "host"],
        ["--ipc", box.ipc],
    ]
    groups += gpu_arguments(box)
    if box.privileged:
        groups.append(["--privileged"])
    if box.shm_size:
        groups.append(["--shm-size", box.shm_size])
    groups += [
        ["--pull", "never"],
        # Before anything else of the host, where memory runs out (docs/adr/0026).
        ["--oom-score-adj", str(OOM_SCORE_ADJ)],
        ["--log-driver", "local", "--log-opt", "max-size=20m"],
        ["--label", f"rigbook.recipe={recipe.name}"],
        ["--label", f"rigbook.profile={profile}"],
        *(["--env-file", path] for path in env_files(recipe)),
        ["-v", f"{SCRIPT_PATH}:{SCRIPT_IN_CONTAINER}:ro"],
    ]
    for source, target, read_only in spec.volumes:
        groups.append(["-v", f"{source}:{target}{':ro' if read_only else ''}"])
    # The image's own entrypoint may be anything; the script is what has to run.
    groups.append(["--entrypoint", "/bin/bash", box.image, SCRIPT_IN_CONTAINER])
    return groups


def _env_file(environ: dict[str, str], recipe: str) -> dict[str, str]:
    """The environment, when docker's --env-file can carry it (one raw NAME=VALUE a line)."""
    for name, value in environ.items():
        try:
            single_line(value)
        except ValueError as error:
            raise SpecError(f"recipe {recipe}: env.{name}: {error}") from None
        if not name or name.startswith("#") or "=" in name or name.split() != [name]:
            raise SpecError(f"recipe {recipe}: env: {name!r} cannot be a name in an env file")
    return environ


def render(target: str, **values: object) -> str:
    """The text of the template that stands at `target` in templates/."""
    return _templates().get_template(f"{target.lstrip('/')}.j2").render(**values)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    # No HTML escaping: these are scripts and units, quoted by schema.core.quoting.
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    made.globals["program"] = node_program.path()
    return made
