"""From files and pyinfra's data to a Plan. All errors are SpecError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from node.rules.secret import SECRETS_PATH
from schema.core.errors import SpecError, shown, unknown
from schema.core.parse import build
from schema.core.strings import plain_name
from schema.core.yaml_file import read_map
from schema.desired.kubernetes import CHART, ClusterData, cluster_recipe, is_cluster
from schema.desired.plan import ENGINE_FOLDERS, PAIR_TIMER, UNIT, Document, EngineSpec, Plan
from schema.desired.rig import Node, Rig
from schema.importing.neighbour import recognised
from schema.importing.reading import keys_of
from schema.inputs.check import host_data
from schema.inputs.host_data import HostData
from schema.inputs.runbooks import kind_of
from schema.observed.artifact import LIBRARIES, VENV_LIBRARIES, VLLM_INFO
from schema.observed.docker import ImageFileProbe
from schema.observed.files import VenvProbe
from schema.observed.snapshot import SnapshotRequest
from schema.recipe.recipe import Recipe
from schema.render import library_files, limit_files
from schema.render.engine_files import documents
from schema.render.engine_spec import engine_spec
from schema.render.jit_caches import kept

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
    return build(Recipe, data, lambda key: str(found[0]), given={"name": name})


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
    kind = kind_of(runbooks, HostData)
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
        return _deployment(hosts, sources or {}, kind_of(runbooks, ClusterData))
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
        files=tuple(dict.fromkeys((*library_files.FILES, *limit_files.FILES))),
        units=(library_files.GUARD_PATH, library_files.GUARD_TIMER, limit_files.GUARD_TIMER),
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
            *kept(spec).values(),
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
