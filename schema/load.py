"""From files and pyinfra's data to a Plan. All errors are SpecError."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from node.rules.secret import SECRETS_PATH
from schema import render_engine
from schema.artifact import LIBRARIES, VENV_LIBRARIES, VLLM_INFO
from schema.cluster import CHART, ClusterData, cluster_recipe, is_cluster
from schema.core import (
    MAX_BYTES,
    PYINFRA_KEYS,
    HostKeys,
    SpecError,
    build_parse,
    known_keys,
    nearest,
    plain_name,
    read_map,
    shown,
    unknown,
)
from schema.keys import (
    REMOVED,
    RUNBOOKS,
    HostData,
    data_type_of,
    rigs_of,
    runbooks,
    runbooks_of,
    taken,
)
from schema.plan import (
    ENGINE_FOLDERS,
    PAIR_TIMER,
    UNIT,
    Document,
    EngineSpec,
    Node,
    Plan,
    Rig,
    engine_spec,
    jit_caches_kept,
)
from schema.recipe import Recipe
from schema.render_engine import documents
from schema.snapshot import ImageFileProbe, SnapshotRequest, VenvProbe

# Which files are recipes of a neighbour: of eugr's run-recipe.py, or of sparkrun.
#
# Sources: recipes/README.md and run-recipe.py of eugr/spark-vllm-docker, RECIPES.md and
# core/recipe.py of spark-arena/sparkrun.

Launcher = Literal["eugr", "sparkrun"]
WORDS: dict[Launcher, str] = {"eugr": "eugr's run-recipe.py", "sparkrun": "sparkrun"}
# Keys that every recipe of theirs has two of, and none of ours has.
_THEIRS = {"recipe_version", "command", "defaults", "runtime", "metadata", "mods"}
_VLLM = ("", "vllm", "vllm-distributed", "vllm-ray", "eugr-vllm")
_FIRST_WORDS = (
    ("sglang", re.compile(r"sglang\s+serve\b|python3?\s+-m\s+sglang\b")),
    ("llama.cpp", re.compile(r"llama-server\b")),
    ("TensorRT-LLM", re.compile(r"trtllm-serve\b|mpirun\b.*trtllm")),
)


def launcher_of(data: Mapping[str, object]) -> Launcher | None:
    """Whose recipe this is; None for one of ours, or for something else.

    run-recipe.py reads version 1, sparkrun later ones; sparkrun alone knows `runtime`.
    """
    if "vllm_serve" in data or len(_THEIRS & data.keys()) < 2:
        return None
    first = str(data.get("recipe_version", "2")) == "1" and "runtime" not in data
    return "eugr" if first else "sparkrun"


def recognised(data: Mapping[str, object], file: str) -> None:
    """SpecError, with the command that makes a recipe of ours, where `data` is a neighbour's."""
    launcher = launcher_of(data)
    if launcher is not None:
        raise SpecError(
            f"{file}: is a recipe of {WORDS[launcher]}; allowed: one of rigbook's, which "
            f"`python -m schema.importing {file} --write` makes of it"
        )


def section(data: Mapping[str, object], key: str, file: str) -> dict[str, Any]:
    """The map at `key`, an empty one where there is none; SpecError where it is no map."""
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise SpecError(
            f"{file}: {key}: is {shown(value, key == 'env')}; allowed: a map of keys and values"
        )
    return {str(name): one for name, one in value.items()}


def check_engine(data: Mapping[str, object], file: str) -> None:
    """SpecError where the recipe starts another engine than vLLM."""
    runtime, command = str(data.get("runtime") or ""), str(data.get("command") or "").strip()
    engine = next((name for name, words in _FIRST_WORDS if words.match(command)), None)
    if engine is None and runtime not in _VLLM:
        engine = runtime
    if engine is not None:
        raise SpecError(f"{file}: starts {shown(engine)}; allowed: vllm, rigbook runs no other")


# A neighbour's YAML, read as their launchers read it (PyYAML's safe loader).
#
# Where a key is given twice the last one counts, which is told; anchors are followed.

# what a recipe's anchors may make of it; each alias of an alias may multiply it
_MAX_NODES = 100_000


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers which keys it met twice."""

    twice: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        self.twice += sorted({name for name in names if names.count(name) > 1})
        return super().construct_mapping(node, deep)


def _weight(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values the node is with its aliases written out; ValueError for one in itself."""
    if id(node) not in known:
        known[id(node)] = -1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for row in inner for part in (row if isinstance(row, tuple) else (row,))]
        known[id(node)] = 1 + sum(_weight(part, known) for part in parts)
    if known[id(node)] < 0:
        raise ValueError("an alias stands in what it stands for")
    return known[id(node)]


def keys_of(file: Path) -> dict[str, object]:
    """The map in the file; an empty one where it cannot be read."""
    try:
        return read_file(file)[0]
    except SpecError:
        return {}


def read_file(file: Path) -> tuple[dict[str, object], list[str]]:
    """The map in the file, and the keys that stand twice. SpecError: one line that says why not."""
    try:
        text = file.read_bytes()
        if len(text) > MAX_BYTES:
            raise SpecError(f"{file}: is {len(text)} bytes; allowed: {MAX_BYTES} or fewer")
        loader = _Loader(text.decode())
        loader.twice = []
        root = loader.get_single_node()
        if root is not None and _weight(root, {}) > _MAX_NODES:
            raise SpecError(
                f"{file}: grows beyond {_MAX_NODES} values by its aliases; allowed: less"
            )
        data = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split()) or "is nested too deeply"
        raise SpecError(f"{file}: {line}; allowed: valid YAML") from None
    if not isinstance(data, dict):
        raise SpecError(f"{file}: is {shown(data)}; allowed: a recipe, a map of keys and values")
    return {str(key): value for key, value in data.items()}, loader.twice


# pyinfra's merged data of one host against the type of the runbook that runs.

D = TypeVar("D", bound=HostKeys)
COMMAND_LINE = "--data"


def host_data(
    name: str, data: Mapping[str, object], sources: Mapping[str, str], kind: type[D]
) -> D:
    """The checked data of host `name`.

    `data` is pyinfra's merged dict; `sources` says for a key where it came from
    (`group_data/spark.py`, `--data`), for the errors. `kind` is the runbook's type: --data holds no
    key that it does not take; inventory and group_data may hold any runbook's, since they
    describe the host for all of them. SpecError has a line for each problem.
    """

    def where(key: str) -> str:
        return f"{sources.get(key, 'inventory or group_data')}: host {name}"

    others = _others(data, kind, sources)
    problems = [*_strays(data, sources, kind, where)]
    checked: list[HostKeys] = []
    kinds: list[type[HostKeys]] = [kind, *others]
    for one in kinds:
        try:
            checked.append(
                build_parse(one, {k: data[k] for k in known_keys(one) if k in data}, where)
            )
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(*dict.fromkeys(problems))
    for found in checked:
        if wrong := found.conflict():
            raise SpecError(f"{where(wrong[0])}: {wrong[1]}")
    own = checked[0]
    assert isinstance(own, kind)
    return own


def _others(
    data: Mapping[str, object], kind: type[HostKeys], sources: Mapping[str, str]
) -> list[type[HostKeys]]:
    """The types of other runbooks whose keys stand in inventory or group_data."""
    own, rigs = known_keys(kind), rigs_of(kind)
    found = [
        runbooks(rigs)[takers[0]]
        for key in data
        if key not in own
        and sources.get(key) != COMMAND_LINE
        and (takers := runbooks_of(key, rigs))
    ]
    return list(dict.fromkeys(found))


def _strays(
    data: Mapping[str, object],
    sources: Mapping[str, str],
    kind: type[HostKeys],
    where: Callable[[str], str],
) -> Iterator[str]:
    """A line for each key that nobody knows, and for each of --data that this runbook has no use
    for."""
    own = taken(kind)
    for key in data:
        takers = runbooks_of(key, rigs_of(kind))
        if key in own or key in PYINFRA_KEYS or (takers and sources.get(key) != COMMAND_LINE):
            continue
        if takers:
            yield (
                f"{where(key)}: {key}: {_named(kind)} does not take it; "
                f"allowed: with {', '.join(takers)}; --data help=true lists the keys"
            )
            continue
        if key in REMOVED:
            yield f"{where(key)}: {key}: {REMOVED[key]}"
            continue
        close = nearest(key, [*own, *PYINFRA_KEYS])
        names, more = own, ", and pyinfra's ssh_ keys"
        if sources.get(key) == COMMAND_LINE:
            names = [name for name in own if name not in rigs_of(kind).model_fields]
            more = "; --data help=true lists all keys"
        allowed = ", ".join(sorted(names)) or "none of its own"
        yield f"{where(key)}: unknown key {shown(key)}{close}; allowed{kind.rigs}: {allowed}{more}"


def _named(kind: type[HostKeys]) -> str:
    """The runbook of this type, for a person."""
    names = [name for name, one in runbooks(rigs_of(kind)).items() if issubclass(kind, one)]
    return " or ".join(names) or "this runbook"


# The keys that a runbook takes with --data, for a person: type, unit, default, purpose.


def key_lines(runbook: str) -> list[str]:
    """The keys of `runbook`, its own first, then those of every runbook; one a line.

    Those on a Kubernetes rig follow, where it is one of both kinds of rig; a runbook that is none
    of ours takes what any of ours takes.
    """
    rigs = [rigs_of(kind) for kind in RUNBOOKS.get(runbook, ())] or [HostData, ClusterData]
    return [line for one in rigs for line in _of_rigs(runbook, one)]


def _of_rigs(runbook: str, rigs: type[HostKeys]) -> list[str]:
    """The keys on one kind of rig."""
    kind, name = data_type_of((runbook,), rigs), f"{runbook}{rigs.rigs}"
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    shared = [key for key in taken(kind) if key in rigs.model_fields]
    own = [key for key in taken(kind) if key not in shared]
    return [
        f"{name}: keys of its own" if own else f"{name}: no keys of its own",
        *(_line(key, fields[key]) for key in own),
        f"{name}: keys of every runbook; those of the rig belong in inventory and group_data",
        *(_line(key, fields[key]) for key in shared),
    ]


def _line(key: str, field: FieldInfo) -> str:
    """`key: purpose (type, limits and unit; default)`."""
    says, _, none = str(field.description).partition("; none: ")
    extra: Any = field.json_schema_extra
    bounds = {name: getattr(m, name) for m in field.metadata for name in ("ge", "le")
              if hasattr(m, name)}  # fmt: skip
    limits = f", {bounds['ge']} to {bounds['le']}" if bounds else ""
    unit = f" {extra['unit']}" if extra["unit"] else ""
    default = "required" if field.is_required() else f"default: {none or _shown(field.default)}"
    return f"  {key}: {says} ({_words(field.annotation)}{limits}{unit}; {default})"


def _shown(value: object) -> str:
    """A default as one would type it."""
    if value in (None, (), {}):
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(kind: Any) -> str:
    """A field's type, in words."""
    inner = [arg for arg in get_args(kind) if arg is not type(None)]
    if hasattr(kind, "__metadata__"):
        return _words(inner[0])
    if get_origin(kind) is Literal:
        return " | ".join(map(str, inner))
    if get_origin(kind) is tuple:
        return "list"
    if get_origin(kind) is dict:
        return "JSON map"
    if inner:
        return " or ".join(dict.fromkeys(_words(arg) for arg in inner))
    return {bool: "true|false", int: "whole number"}.get(kind, "text")


RECIPES_DIR = "catalog/recipes"
# What every host of a rig must say alike: one run has one recipe, one profile, one MTU.
PER_HOST = {
    "role", "rank", "lan_address", "fabric_address", "fabric_device", "hcas", "uncabled",
    "ssh_user", "home", "mac", "nic", "power_cycle_command",
}  # fmt: skip
SECRET = frozenset({"webhook"})
# Settings that change how much memory a load finds or how it is placed (NUMA).
SYSCTLS = ("kernel.numa_balancing", "vm.overcommit_memory", "vm.swappiness")
ROOM_FOR = ("/var/lib/docker", "/etc", "/var/lib/rigbook")
ROOM_FOR_VENV = ("/etc", "/var/lib/rigbook")


def recipe(name: str, root: Path, dirs: Sequence[str] = ()) -> Recipe:
    """The recipe called `name`: `catalog/recipes/NAME.yaml`, or from one of the folders `dirs`.

    `root` is the project's root; relative folders start there. SpecError: a name that is no plain
    name, a recipe that does not exist (the error lists those that do) or that stands in two
    folders, and everything wrong in its file.
    """
    try:
        plain_name(name)
    except ValueError as error:
        raise SpecError(f"recipe: {shown(name)} {error}") from None
    folders = list(dict.fromkeys([RECIPES_DIR, *dirs]))
    for folder in folders:
        if not (root / folder).is_dir():
            raise SpecError(f"recipes_dir: {folder}: is not a folder; allowed: a folder of recipes")
    found = [
        f for f in (Path(folder, f"{name}.yaml") for folder in folders) if (root / f).is_file()
    ]
    if not found:
        known = {file.stem for folder in folders for file in (root / folder).glob("*.yaml")}
        raise SpecError(f"{', '.join(folders)}: {unknown('recipe', name, known)}")
    if len(found) > 1:
        raise SpecError(f"recipe {name} stands twice: {found[0]} and {found[1]}; allowed: once")
    try:
        data = read_map(root / found[0], str(found[0]))
    except SpecError:
        # Theirs may have an anchor, or a key twice.
        recognised(keys_of(root / found[0]), str(found[0]))
        raise
    recognised(data, str(found[0]))
    return build_parse(Recipe, data, lambda key: str(found[0]), given={"name": name})


def profile_name(recipe: Recipe, wanted: str | None) -> str:
    """The profile to use: `wanted`, or the recipe's default. SpecError lists those that exist."""
    if wanted is None:
        return recipe.default_profile
    if wanted not in recipe.profiles:
        raise SpecError(f"recipe {recipe.name}: {unknown('profile', wanted, recipe.profiles)}")
    return wanted


def host_datas(
    hosts: Mapping[str, Mapping[str, object]],
    sources: Mapping[str, Mapping[str, str]] | None,
    runbooks: tuple[str, ...] = (),
) -> dict[str, HostData]:
    """The checked data of all hosts by name; all hosts' problems in one SpecError.

    `runbooks` are those that run, by name; none: what any of them takes is taken.
    Values that belong to the whole rig must be the same on every host.
    """
    if not hosts:
        raise SpecError("no hosts matched; allowed: an inventory, group or --limit that has hosts")
    kind = data_type_of(runbooks, HostData)
    checked: dict[str, HostData] = {}
    problems: list[str] = []
    for name, data in hosts.items():
        try:
            checked[name] = host_data(name, data, (sources or {}).get(name, {}), kind)
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(*problems)
    for key in sorted(kind.model_fields.keys() - PER_HOST):
        values = {name: getattr(data, key) for name, data in checked.items()}
        if len(set(values.values())) > 1:
            each = ", ".join(
                f"{name} has {'none' if value is None else shown(value, key in SECRET)}"
                for name, value in values.items()
            )
            problems.append(f"{key}: hosts of one rig differ: {each}; allowed: one value for all")
    if problems:
        raise SpecError(*problems)
    return checked


def plan(
    hosts: Mapping[str, Mapping[str, object]],
    sources: Mapping[str, Mapping[str, str]] | None,
    root: Path,
    runbooks: tuple[str, ...] = (),
) -> Plan:
    """What a run wants on every node, from pyinfra's merged data of ALL hosts of the rig.

    `hosts`: host name → data. `sources`: host name → key → where the key came from, for errors.
    `root`: the project's root. `runbooks`: as for `host_datas`.
    A run limited to one host still needs the data of all.
    """
    if any(map(is_cluster, hosts.values())):
        return _deployment(hosts, sources or {}, data_type_of(runbooks, ClusterData))
    checked = host_datas(hosts, sources, runbooks)
    common = next(iter(checked.values()))
    rig = _rig(checked)
    chosen = recipe(common.recipe, root, common.recipes_dir)
    profile = profile_name(chosen, common.profile)
    specs: dict[str, EngineSpec] = {}
    files: dict[str, tuple[Document, ...]] = {}
    requests: dict[str, SnapshotRequest] = {}
    for node in rig.nodes:
        spec = engine_spec(rig, node, chosen, profile)
        specs[node.name] = spec
        files[node.name] = documents(rig, node, chosen, profile, spec)
        requests[node.name] = _request(rig, node, chosen, spec, files[node.name], common.deep)
    return Plan(rig, chosen, profile, specs, files, requests, former_rig=common.former_rig)


def _deployment(
    hosts: Mapping[str, Mapping[str, object]],
    sources: Mapping[str, Mapping[str, str]],
    kind: type[ClusterData],
) -> Plan:
    """The plan of a Kubernetes rig of one host, whose engine is a Deployment."""
    if len(hosts) != 1:
        raise SpecError(
            f"a Kubernetes rig has one host, this inventory has {len(hosts)}: "
            f"{', '.join(sorted(hosts))}; allowed: an inventory file each"
        )
    name, data = next(iter(hosts.items()))
    chart = host_data(name, data, sources.get(name, {}), kind)
    home = "/root" if chart.ssh_user == "root" else f"/home/{chart.ssh_user}"
    try:
        node = Node(
            name=name, role="head", rank=0, lan_address=chart.lan_address,
            ssh_user=chart.ssh_user, home=home,
        )  # fmt: skip
    except ValidationError as error:
        raise SpecError(f"host {name}: {_reason(error)}") from None
    request = SnapshotRequest(
        files=tuple(dict.fromkeys((*render_engine.LIBRARY_FILES, *render_engine.LIMIT_FILES))),
        units=(
            render_engine.LIBRARY_GUARD_PATH,
            render_engine.LIBRARY_GUARD_TIMER,
            render_engine.LIMIT_GUARD_TIMER,
        ),
        disks=(chart.vgpu_dir, *ROOM_FOR_VENV),
        sysctls=SYSCTLS,
    )
    rig = Rig(name=chart.rig, nodes=(node,))
    return Plan(rig, cluster_recipe(chart), CHART, {}, {}, {name: request}, chart)


def _rig(checked: Mapping[str, HostData]) -> Rig:
    """The rig of these hosts, in rank order."""
    common = next(iter(checked.values()))
    nodes = []
    for name, data in checked.items():
        try:
            nodes.append(data.node(name))
        except ValidationError as error:
            raise SpecError(f"host {name}: {_reason(error)}") from None
    nodes.sort(key=lambda node: node.rank)
    try:
        fabric = next((found for data in checked.values() if (found := data.fabric())), None)
        return Rig(name=common.rig, nodes=tuple(nodes), fabric=fabric)
    except ValidationError as error:
        raise SpecError(f"rig {common.rig}: {_reason(error)}") from None


def _reason(error: ValidationError) -> str:
    """What our own validator said."""
    return str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")


def _venvs(spec: EngineSpec) -> tuple[VenvProbe, ...]:
    """The venv to look at, with who runs it; none for a container."""
    if spec.venv is None or spec.user is None:
        return ()
    return (VenvProbe(path=spec.venv, user=spec.user),)


def _image_files(recipe: Recipe, image: str) -> tuple[ImageFileProbe, ...]:
    """What to look for inside the image or venv: each patch, what stands in for one, the modules'
    files, and pip's metadata of an image's vLLM, whose folder names the version.
    """
    below = [(name, "") for module in recipe.modules for name in module.files]
    below += [
        (row.unless.path, row.unless.contains)
        for row in (*recipe.patches, *recipe.modules)
        if row.unless
    ]
    if recipe.container is not None:
        below.append((VLLM_INFO, "Version: "))
    libraries = LIBRARIES if recipe.container else VENV_LIBRARIES
    places = [(p.path, p.contains) for p in recipe.patches]
    places += [(f"{library}/{path}", text) for library in libraries for path, text in below]
    probes = (ImageFileProbe(image=image, path=path, contains=text) for path, text in places)
    return tuple(dict.fromkeys(probes))


def _request(
    rig: Rig, node: Node, recipe: Recipe, spec: EngineSpec, files: tuple[Document, ...], deep: bool
) -> SnapshotRequest:
    """What a snapshot of `node` has to look at for this plan."""
    patched = recipe.container.image if recipe.container else str(spec.venv)
    return SnapshotRequest(
        # The folders as well: serve makes those that are absent, with the right owner.
        files=(
            *(file.path for file in files),
            SECRETS_PATH,
            *ENGINE_FOLDERS,
            *spec.cache_folders,
            *spec.jit_folders,
            *jit_caches_kept(spec).values(),
        ),
        units=(UNIT, PAIR_TIMER) if len(rig.nodes) > 1 else (UNIT,),
        images=(recipe.container.image,) if recipe.container else (),
        image_files=_image_files(recipe, patched),
        venvs=_venvs(spec),
        weights=(spec.weights,),
        deep=deep,
        fabric_device=node.fabric_device,
        fabric_mtu=rig.fabric.mtu if rig.fabric else None,
        peers=tuple(
            str(other.fabric_address)
            for other in rig.nodes
            if other.name != node.name and other.fabric_address is not None
        ),
        # Ranks meet on the fabric, or on the LAN where the recipe's VLLM_HOST_IP says so.
        connections=tuple(
            str(address)
            for other in rig.nodes
            if other.name != node.name
            for address in (other.fabric_address, other.lan_address)
            if address is not None
        ),
        disks=(spec.weights, *((spec.venv, *ROOM_FOR_VENV) if spec.venv else ROOM_FOR)),
        sysctls=SYSCTLS,
    )
