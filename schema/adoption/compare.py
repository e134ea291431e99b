"""What a recipe renders beside what runs: flag by flag, variable by variable, mount by mount."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from node.rules.secret import API_KEY, MASK
from schema.adoption.command_line import parse
from schema.desired.plan import EngineSpec, Plan
from schema.observed.former import FormerContainer, FormerEngine
from schema.recipe.recipe import ContainerSpec

Kind = Literal["flag", "variable", "mount", "option"]
Verdict = Literal["same", "differs", "secret"]
KINDS: tuple[Kind, ...] = ("flag", "variable", "mount", "option")
NOT_SET = "not set"
# A shell's, a login's, systemd's or docker's own; no engine reads them, and ours has its own.
OWN = re.compile(
    r"(?:HOSTNAME|HOME|PWD|OLDPWD|SHLVL|_|TERM|USER|LOGNAME|SHELL|MAIL|LANG|LANGUAGE|LC_\w+|EDITOR"
    r"|LS_COLORS|LESS\w*|PS1|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_\w+|MEMORY_PRESSURE_\w+"
    r"|NOTIFY_SOCKET|MAINPID|MANAGERPID\w*|CREDENTIALS_DIRECTORY|XDG_\w+|DBUS_\w+|SSH_\w+|SUDO_\w+"
    r"|TMUX\w*|STY|COLORTERM|VIRTUAL_ENV\w*|KUBERNETES_\w+)\Z"
)
# What systemd gives a service (systemd.exec(5), "Environment Variables in Spawned Processes").
UNIT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


@dataclass(frozen=True)
class Row:
    """One flag, variable, mount, or option of the container: `ours` is what the recipe renders,
    `live` what runs.
    """

    kind: Kind
    name: str
    verdict: Verdict
    ours: str
    live: str


def compare(
    plan: Plan, node: str, engine: FormerEngine, container: FormerContainer | None
) -> list[Row]:
    """Every flag, variable, mount and option of a node's engine, in words; secrets are compared by
    name.
    """
    spec = plan.specs[node]
    rows = [*_flags(spec, engine), *_variables(spec, engine, container)]
    if container is not None:
        rows += [*_mounts(spec, container), *_options(plan.recipe.container, container)]
    return rows


def _flags(spec: EngineSpec, engine: FormerEngine) -> list[Row]:
    ours, live = parse(spec.argv), parse(engine.argv)
    want, have = {**ours.flags, **ours.join}, {**live.flags, **live.join}
    rows = [
        _row("flag", name, _text(want.get(name)), _text(have.get(name)),
             canonical(want.get(name)) == canonical(have.get(name)))
        for name in dict.fromkeys((*want, *have))
    ]  # fmt: skip
    for name in live.secret:
        given = secret_name(name) in spec.secrets
        rows.append(Row("flag", name, "secret" if given else "differs",
                        "from secrets" if given else NOT_SET, MASK))  # fmt: skip
    return rows


def secret_name(flag: str) -> str:
    """The variable that carries a secret flag's value; vLLM reads `api_key` from VLLM_API_KEY."""
    return API_KEY if flag == "api_key" else flag.upper()


def expected(spec: EngineSpec, container: FormerContainer | None) -> dict[str, str]:
    """The environment that our engine gets: the image's, and the recipe's above it."""
    if container is not None:
        return {**container.image_env, **spec.environ}
    path = f"{spec.venv}/bin:{spec.environ.get('PATH', UNIT_PATH)}"
    return {**spec.environ, "PATH": path}


def _variables(
    spec: EngineSpec, engine: FormerEngine, container: FormerContainer | None
) -> list[Row]:
    want, have = expected(spec, container), dict(engine.env)
    if engine.inside_of == "pod" and container is not None:
        # what its image sets is not known, and the cluster adds the addresses of all its services
        have = {n: v for n, v in have.items() if n in container.env or n in want}
    if container is None:
        want["PATH"], have["PATH"] = _path(want["PATH"]), _path(have.get("PATH", ""))
    rows = []
    for name in dict.fromkeys((*want, *have)):
        if name in spec.secrets or (OWN.match(name) and name not in spec.environ):
            continue
        known = have.get(name) == MASK and want.get(name) == MASK
        same = known or want.get(name) == have.get(name)
        rows.append(_row("variable", name, want.get(name, NOT_SET), have.get(name, NOT_SET), same))
    for name in spec.secrets:
        live = name in have or (name == API_KEY and "--api-key" in engine.secret_flags)
        rows.append(Row("variable", name, "secret" if live else "differs", "from secrets",
                        MASK if live else NOT_SET))  # fmt: skip
    return rows


def _path(text: str) -> str:
    """PATH's folders, each once, without those that every Linux has: what may differ."""
    usual = {*UNIT_PATH.split(":"), "/sbin", "/bin", "/snap/bin", "/usr/games", "/usr/local/games"}
    return ":".join(f for f in dict.fromkeys(text.split(":")) if f and f not in usual)


def _mounts(spec: EngineSpec, container: FormerContainer) -> list[Row]:
    want = {target: (source, ro) for source, target, ro in spec.volumes}
    have = {m.target: (m.source, m.read_only) for m in container.mounts}
    return [
        _row("mount", target, _mount(want.get(target)), _mount(have.get(target)),
             want.get(target) == have.get(target))
        for target in dict.fromkeys((*want, *have))
    ]  # fmt: skip


def _options(ours: ContainerSpec | None, live: FormerContainer) -> list[Row]:
    """The image by content, and how the container runs; nothing of it for a venv."""
    if ours is None:
        return [Row("option", "container", "differs", "a venv", live.name)]
    names = {*live.digests, *live.tags, live.image_id}
    # a pod's image is told by the cluster, which knows no names of this host
    leads = ours.image in names or (not live.tags and not live.digests and ours.image == live.image)
    pairs = {
        "privileged": (ours.privileged, live.privileged),
        "gpus": (ours.gpus is not None, live.gpus),
        "ipc": (ours.ipc == "host", live.ipc_mode == "host"),
        "network": ("host", live.network_mode),
    }
    return [
        _row("option", "image", ours.image, live.image if leads else live.image_id, leads),
        *(_row("option", n, str(a).lower(), str(b).lower(), a == b) for n, (a, b) in pairs.items()),
    ]


def _mount(value: tuple[str, bool] | None) -> str:
    return NOT_SET if value is None else value[0] + (" (read-only)" if value[1] else "")


def _row(kind: Kind, name: str, ours: str, live: str, same: bool) -> Row:
    return Row(kind, name, "same" if same else "differs", ours, live)


def _text(value: JsonValue | None) -> str:
    """A flag's value for a line of text."""
    if value is None:
        return NOT_SET
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def canonical(value: JsonValue | None) -> object:
    """Numbers by value (0.90 is 0.9), a list of one as its value, maps without their order."""
    if isinstance(value, list) and len(value) == 1:
        return canonical(value[0])
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {key: canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [canonical(inner) for inner in value]
    try:
        return float(value)
    except ValueError:
        return value
