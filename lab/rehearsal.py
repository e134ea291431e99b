"""A twin of a rig, and an incident dealt on it."""

from __future__ import annotations

import json
import pprint
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facts.endpoint import Endpoint, ask
from lab import core, engine, incidents, lifecycle
from lab import host as lab_host
from lab.core import (
    ENGINE_VERSION,
    FABRIC_DEVICE,
    FABRIC_MTU,
    MAX_HOSTS,
    MODEL_PATH,
    SSH_USER,
    LabError,
    LabHost,
    LabSettings,
    Place,
    Twin,
    in_parallel,
)
from lab.host import Hosts
from lab.incidents import ENGINE, HEAD, HELD, KEPT_COPY, NOT_HELD, Incident, Rig
from lab.incidents import ROOT as incidents_ROOT
from schema import load
from schema.core import SpecError
from schema.recipe import Recipe

# A twin of a rig on this machine: its hosts by their names, its users and paths, a small engine.
#
# data.py      an inventory's hosts with their merged data, as pyinfra merges them
# shape.py     from that data to the twin: names, users, addresses, GPUs, what differs
# recipe.py    the rig's recipe for the lab's small engine, under the same names
# raising.py   makes the twin and what lies on its hosts
# incident.py  deals an incident, judges and times it
# incidents/   the incidents, each with how it breaks the twin

# A rig's recipe for the lab's small engine: the same image name, profiles, paths and ports.
#
# What the small engine cannot take is left out, and told.

# The longest context of the lab's model; the recipe's lengths shrink in proportion.
LENGTH = 512
SHORTEST = 64
# What the small engine does as the recipe says it.
KEPT = frozenset({
    "model", "served_model_name", "host", "port", "max_num_seqs", "enable_prefix_caching",
    "enable_chunked_prefill", "max_model_len",
})  # fmt: skip
ENV = {
    "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
ENV_OF_A_RIG = {"GLOO_SOCKET_IFNAME": "{fabric.device}", "VLLM_HOST_IP": "{node.fabric_address}"}
# A start on the cores of one machine that all hosts share.
START_BUDGET_S = 900


def name_of(recipe: Recipe) -> str:
    """The twin's recipe has a name of its own: two recipes of one name are refused."""
    return f"{recipe.name}-twin"


def image_of(recipe: Recipe) -> str:
    """The image's name on the twin: a digest cannot be given to another image, so it has a tag."""
    image = recipe.container.image if recipe.container else ""
    name, digest, _ = image.partition("@")
    return f"{name}:twin" if digest else image


def twin_recipe(recipe: Recipe, nodes: int) -> tuple[dict[str, Any], list[str]]:
    """The recipe of the twin of `nodes` hosts, as YAML's data, and what was left out of the rig's.

    LabError for a recipe that the small engine cannot stand in for.
    """
    if recipe.weights.format != "safetensors":
        raise LabError(f"recipe {recipe.name}: the small engine reads no {recipe.weights.format}")
    out: list[str] = []
    longest = longest_of(recipe)
    serve = _flags(recipe.vllm_serve, longest)
    dropped = set(recipe.vllm_serve) - set(serve)
    profiles = {}
    for name, profile in recipe.profiles.items():
        kept = _flags(profile.vllm_serve, longest)
        dropped |= set(profile.vllm_serve) - set(kept)
        profiles[name] = {"description": f"twin: {profile.description}", "vllm_serve": kept}
    serve |= {"enforce_eager": True, "dtype": "float32", "override_generation_config":
              {"temperature": 0}}  # fmt: skip
    serve |= {"tensor_parallel_size": nodes if nodes > 1 else 2}
    if nodes == 1:
        serve |= {"distributed_executor_backend": "mp"}
    if dropped - set(serve):
        out.append(f"flags of {recipe.name}: {', '.join(sorted(dropped - set(serve)))}")
    made: dict[str, Any] = {
        "model": recipe.model,
        "description": f"TWIN of {recipe.name}: a 2-layer model on the CPU build of vLLM",
        "weights": {"source": "made by the lab", "path": recipe.weights.path},
        "env": ENV | ({name: _own(recipe, name) for name in ENV_OF_A_RIG} if nodes > 1 else {}),
        "vllm_serve": serve,
        "profiles": profiles,
        "default_profile": recipe.default_profile,
        "forbidden_env": [one.model_dump(exclude_none=True) for one in recipe.forbidden_env],
        "expect": {"start_budget_s": max(START_BUDGET_S, recipe.expect.start_budget_s),
                   "needs_nvidia": False, "tolerance": 0.7},
    }  # fmt: skip
    made |= _runtime(recipe, nodes) | _parts(recipe)
    out += _left_out(recipe, made)
    return made, out


def longest_of(recipe: Recipe) -> int:
    """The longest context that the recipe or a profile asks for."""
    rows: Sequence[Mapping[str, Any]] = [
        recipe.vllm_serve, *(one.vllm_serve for one in recipe.profiles.values())
    ]  # fmt: skip
    return max([int(row["max_model_len"]) for row in rows if row.get("max_model_len")] or [LENGTH])


def _flags(flags: Mapping[str, Any], longest: int) -> dict[str, Any]:
    kept = {name: value for name, value in flags.items() if name in KEPT}
    if kept.get("max_model_len"):
        kept["max_model_len"] = scaled(int(kept["max_model_len"]), longest)
    return kept


def scaled(length: int, longest: int) -> int:
    """A length of the rig's in proportion to the small engine's, of which `longest` is LENGTH."""
    return max(SHORTEST, LENGTH * length // longest)


def _own(recipe: Recipe, name: str) -> str:
    """The recipe's own value where it follows from the inventory."""
    value = recipe.env.get(name, "")
    return value if value.startswith("{") else ENV_OF_A_RIG[name]


def _runtime(recipe: Recipe, nodes: int) -> dict[str, Any]:
    box, venv = recipe.container, recipe.venv
    made: dict[str, Any] = {}
    if box is not None:
        volumes = [volume.model_dump() for volume in box.volumes]
        made["container"] = {"image": image_of(recipe), "ipc": box.ipc,
                             "volumes": volumes, "jit_caches": box.jit_caches}  # fmt: skip
    if venv is not None:
        made["venv"] = {"path": venv.path, "version": f"{ENGINE_VERSION}+cpu",
                        "wheels": venv.wheels}  # fmt: skip
        made["wheels"] = {"package": "vllm", "torch_variant": "cpu"}
    if nodes > 1:
        port = recipe.multi_node.master_port if recipe.multi_node else 29501
        made["multi_node"] = {"nnodes": nodes, "master_port": port}
    return made


def _parts(recipe: Recipe) -> dict[str, Any]:
    """The patches and modules that a container's image is told by, of any version: their stand-ins
    are in the twin's image.
    """
    if recipe.container is None:
        return {}
    patches = [
        {"id": row.id, "path": row.path, "contains": row.contains, "count": row.count,
         "required": row.required, "reason": row.reason}
        for row in recipe.patches if engine.place(row.path)
    ]  # fmt: skip
    modules = [
        {"name": row.name, "files": [*row.files], "reason": row.reason} for row in recipe.modules
        if not any("*" in name for name in row.files)
    ]  # fmt: skip
    parts = {"patches": patches, "modules": modules}
    return {name: rows for name, rows in parts.items() if rows}


def _left_out(recipe: Recipe, made: Mapping[str, Any]) -> list[str]:
    """Other parts of the rig's recipe that the twin's has not."""
    box = recipe.container
    patches = {row["id"] for row in made.get("patches", ())}
    modules = {row["name"] for row in made.get("modules", ())}
    parts = {
        "env": ", ".join(sorted(set(recipe.env) - set(made["env"]))),
        "secrets": ", ".join(sorted(recipe.secrets)),
        "gpus": box and box.gpus,
        "runtime": box and box.runtime,
        "privileged": "true" if box and box.privileged else "",
        "digest": box and box.image.partition("@")[2],
        "patches": ", ".join(one.id for one in recipe.patches if one.id not in patches),
        "file_patches": ", ".join(one.id for one in recipe.file_patches),
        "patch_tools": ", ".join(one.id for one in recipe.patch_tools),
        "modules": ", ".join(one.name for one in recipe.modules if one.name not in modules),
        "baselines": ", ".join(sorted({one.profile for one in recipe.expect.baselines})),
    }
    rows = [f"{key} of {recipe.name}: {value}" for key, value in parts.items() if value]
    if patches | modules:
        named = ", ".join(sorted(patches | modules))
        rows.append(f"files of {recipe.name}'s image: stand-ins for {named}")
    if recipe.expect.reasoning or recipe.expect.tools:
        rows.append(f"expect of {recipe.name}: reasoning or tools: a random model has neither")
    return rows


# From a rig's data to its twin's: names, users, paths; addresses on the lab's links.
#
# Nothing of the twin leads to the rig, or out of this machine: what would is left out, and told.

ROOT = Path(__file__).resolve().parents[1]
# Keys that lead out of the twin, or name hardware that it has not; with what stands in their place.
LEFT_OUT: dict[str, Any] = {
    "webhook": None, "webhook_file": None, "url": None, "power_cycle_command": None, "mac": None,
    "nic": None, "hcas": (), "uncabled": (), "driver_module": None, "home": None,
    "former_rig": None,
}  # fmt: skip
# What no twin of containers on one machine can show.
NEVER = (
    "NCCL and RDMA: ranks talk over gloo on a veth",
    "VRAM: nvidia-smi is a stand-in, and the engine computes on the CPU",
    "real speed: a 2-layer model on shared cores; no figure of a twin is a figure",
    "kernel, GRUB and reboots into another kernel: the VM tier has them (make test-vm)",
    "POST, BIOS, Wake-on-LAN, a power cut: they need the board",
    "memory that runs out: all hosts share this machine's",
)


@dataclass(frozen=True)
class Shape:
    """A twin before it is made. `data` and `recipe` are what its files hold."""

    of: str
    twin: Twin
    data: Mapping[str, Mapping[str, Any]]
    recipe_name: str
    recipe: Mapping[str, Any]
    image: str
    weights: str
    venv: str
    wheels: str
    differs: tuple[str, ...]

    @property
    def is_venv(self) -> bool:
        """Whether the engine lives in a venv, on a tower."""
        return bool(self.venv)


def folder(place: Place, of: str) -> Path:
    """Where the twin's own files are, from the project's root; git ignores it."""
    return Path("build", place.name, of)


def shape(
    settings: LabSettings,
    inventory: str,
    hosts: Mapping[str, Mapping[str, Any]],
) -> Shape:
    """The twin of the rig in `inventory`, whose hosts have this data.

    LabError for a rig that cannot have one, and where its data does not fit.
    """
    try:
        plan = load.plan(hosts, None, ROOT)
    except SpecError as error:
        raise LabError(f"{inventory}: {'; '.join(error.problems)}") from None
    of, nodes = Path(inventory).stem, plan.rig.nodes
    if plan.runtime == "deployment":
        raise LabError(f"{inventory}: a Kubernetes rig has no twin; make test-cluster has its lab")
    if len(nodes) > MAX_HOSTS:
        raise LabError(f"{inventory}: {len(nodes)} hosts; allowed: up to {MAX_HOSTS}")
    if plan.runtime == "venv" and len(nodes) > 1:
        raise LabError(f"{inventory}: a rig of several towers has no twin")
    users = {node.ssh_user for node in nodes}
    if len(users) > 1 or users & {"root", SSH_USER}:
        raise LabError(
            f"{inventory}: ssh_user is {', '.join(sorted(users))}; allowed: one user, "
            f"not root, not {SSH_USER}"
        )
    recipe, out = twin_recipe(plan.recipe, len(nodes))
    place = settings.place
    made = place.towers(1) if plan.runtime == "venv" else place.hosts(len(nodes))
    path = folder(place, of)
    data: dict[str, dict[str, Any]] = {}
    rows = []
    for node, host in zip(nodes, made, strict=True):
        own = {
            **_kept(hosts[node.name]),
            "ssh_hostname": host.address, "ssh_port": 22, "ssh_user": node.ssh_user,
            "ssh_key": str(settings.ssh_key), "ssh_known_hosts_file": str(settings.known_hosts),
            "ssh_strict_host_key_checking": "yes",
            "rig": f"{plan.rig.name}-twin", "rank": node.rank, "lan_address": host.address,
            "recipe": name_of(plan.recipe), "recipes_dir": [str(path / "recipes")],
        }  # fmt: skip
        text = f"{node.name}: {node.lan_address} is {host.address}"
        if len(nodes) > 1:
            own |= {"fabric_address": host.fabric_address, "fabric_device": FABRIC_DEVICE,
                    "fabric_mtu": FABRIC_MTU}  # fmt: skip
            text += f", {node.fabric_address} on {node.fabric_device} is {host.fabric_address} on "
            text += FABRIC_DEVICE
        data[node.name] = own
        rows.append(text)
    rows += [f"rig: {plan.rig.name} is {plan.rig.name}-twin", *_silent(hosts), *out]
    venv = plan.recipe.venv
    return Shape(
        of=of,
        twin=Twin(
            tuple(node.name for node in nodes), users.pop(),
            str(path / "inventory" / f"{of}.py"),
        ),
        data=data, recipe_name=name_of(plan.recipe), recipe=recipe, image=image_of(plan.recipe),
        weights=plan.recipe.weights.path, venv=str(venv.path) if venv else "",
        wheels=str(venv.wheels or "") if venv else "", differs=tuple(rows),
    )  # fmt: skip


def _kept(data: Mapping[str, Any]) -> dict[str, Any]:
    """A host's data without what leads out; group_data is read again, so each has its stand-in."""
    own = {key: value for key, value in data.items() if not key.startswith("ssh_")}
    own |= {key: LEFT_OUT[key] for key in own if key in LEFT_OUT}
    return own | {key: None for key in data if key.startswith("ssh_")}


def _silent(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The keys that were left out, without their values: a webhook's is its password."""
    found = sorted(
        {key for data in hosts.values() for key in data if data[key] and key in LEFT_OUT}
    )
    return [f"not on the twin: {', '.join(found)}"] if found else []


def shape_files(made: Shape) -> dict[str, str]:
    """The twin's inventory and recipe: path from the project's root → text."""
    root = Path(made.twin.inventory).parents[1]
    hosts = pprint.pformat([(name, dict(data)) for name, data in made.data.items()],
                           sort_dicts=False, width=99)  # fmt: skip
    inventory = (
        f'"""TWIN of {made.of}, made by `make rehearse`: rehearsal hosts. Not the rig."""'
        "\n\nfrom deploys.plans.cli import own_folder\n\nown_folder()\n\n"
        # its own group: group_data of this name is read for the twin too, and stands below it
        f"{made.of if made.of.isidentifier() else 'twin'} = {hosts}\n"
    )
    # JSON is YAML; the recipe's order is kept
    recipe = f"# TWIN, made by `make rehearse`\n{json.dumps(made.recipe, indent=1)}\n"
    return {
        made.twin.inventory: inventory,
        str(root / "recipes" / f"{made.recipe_name}.yaml"): recipe,
    }


def told(made: Shape) -> list[str]:
    """What differs from the rig and what the twin cannot show, in lines."""
    return [
        *(f"  differs: {row}" for row in made.differs),
        *(f"  cannot be shown: {row}" for row in NEVER),
    ]


# The merged data of an inventory's hosts, as rigbook reads it: host over group over all.
#
# `python -m lab.rehearsal INVENTORY` prints it as JSON. A process of its own: pyinfra's
# command
# line patches the standard library, and an inventory may change what it likes.

LOAD_SECONDS = 60
HostsData = dict[str, dict[str, Any]]


def load_data(inventory: str) -> HostsData:
    """Host name → data of an inventory file; LabError in one line for one that cannot be read."""
    if not Path(ROOT, inventory).is_file():
        known = ", ".join(f"inventory/{f.name}" for f in sorted((ROOT / "inventory").glob("*.py")))
        raise LabError(f"{inventory} is not a file; there are: {known}")
    done = subprocess.run(
        [sys.executable, "-m", "lab.rehearsal", inventory], cwd=ROOT,
        capture_output=True, text=True, timeout=LOAD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(
            f"{inventory}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    found: HostsData = json.loads(done.stdout.splitlines()[-1])
    if not found:
        raise LabError(f"{inventory} has no hosts")
    return found


def merged(inventory: str) -> HostsData:
    """The same, in this process."""
    # here: importing them patches the standard library for gevent
    from pyinfra.api import State
    from pyinfra.context import ctx_state
    from pyinfra_cli.inventory import make_inventory

    state = State()
    with ctx_state.use(state):
        made = make_inventory(inventory, cwd=str(ROOT))
        found = {}
        for host in made:
            data = dict(made.get_data())
            for group in host.groups:
                data |= made.get_group_data(group)
            found[host.name] = data | made.get_host_data(host.name)
    return found


if __name__ == "__main__":
    # the inventory imports the project, and pyinfra puts the folder on the path only later
    sys.path.insert(0, str(ROOT))
    print(json.dumps(merged(sys.argv[1])))


# Makes a twin: its files, its hosts, and what lies on them before anything serves.

HUB = "/.cache/huggingface/hub/"
COMMIT = "0" * 40


def up(settings: LabSettings, made: Shape) -> None:
    """Brings the twin up: hosts, the small engine under the recipe's names, the weights.

    Safe to run again. LabError in one line for what went wrong.
    """
    if made.is_venv:
        lifecycle.up(settings, None, engine.layer, twin=made.twin)
    else:
        lifecycle.up(settings, len(made.twin.names), twin=made.twin)
        engine.provide_image(settings)
    for name, text in shape_files(made).items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with core.phase("the rig's own paths and names on the hosts"):
        in_parallel(settings.hosts(), lambda host: put(settings, host, furniture(made)))


def put(settings: LabSettings, host: LabHost, script: str) -> None:
    """Runs a script as root on a host; LabError with its last words if it fails."""
    done = lab_host.sudo(settings, host, script, timeout=300)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise LabError(f"{host.name}: the twin's files: {' '.join(said) or done.returncode}")


def furniture(made: Shape) -> str:
    """The shell script that puts the recipe's image, weights and venv under their names."""
    user = made.twin.user
    home = f"/home/{user}"
    weights = at_home(made.weights, home)
    lines = ["set -e"]
    if not made.is_venv:
        lines.append(engine.stand_in_command(made.image, engine.stand_in_files(made.recipe)))
    if HUB in weights:
        lines += [f"mkdir -p {shlex.quote(weights)}/refs",
                  f"printf {COMMIT} > {shlex.quote(weights)}/refs/main"]  # fmt: skip
        weights = f"{weights}/snapshots/{COMMIT}"
    parent = shlex.quote(str(Path(weights).parent))
    lines += [
        f"mkdir -p {parent}",
        f"[ -e {shlex.quote(weights)} ] || cp -r {MODEL_PATH} {shlex.quote(weights)}",
        f"chown -R {user}: {_below(weights, home)}",
    ]
    for wanted, there in (
        (made.venv, f"$(readlink -f {engine.LINK})"),
        (made.wheels, engine.WHEELS),
    ):
        if wanted and wanted not in (engine.LINK, engine.WHEELS):
            path = shlex.quote(at_home(wanted, home))
            lines += [f"mkdir -p $(dirname {path})",
                      f"[ -e {path} ] || ln -s {there} {path}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def at_home(path: str, home: str) -> str:
    """A path that may begin with `~`."""
    return home + path[1:] if path.startswith("~") else path


def _below(path: str, home: str) -> str:
    """The top folder below the home that the path is in, else the path: what the user is given."""
    inside = path.startswith(f"{home}/")
    return shlex.quote("/".join(path.split("/")[:4]) if inside else path)


# An incident on the twin: dealt, told as an operator sees it, judged, timed.

CLIENT_S = 20


def rig_of(settings: LabSettings) -> Rig:
    """The twin that is up; LabError where none is."""
    twin = settings.twin()
    if twin is None:
        raise LabError("there is no twin: make rehearse INVENTORY=inventory/spark.py")
    (recipe,) = (incidents_ROOT / twin.inventory).parents[1].glob("recipes/*.yaml")
    text = recipe.read_text()
    found: Mapping[str, Any] = json.loads(text[text.index("{") :])
    return Rig(Hosts(settings), twin.names, twin.inventory, found, twin.user)


def noted(settings: LabSettings) -> Path:
    """Where the incident that is open is noted."""
    return settings.home / "incident.json"


def endpoint(rig: Rig) -> Endpoint:
    """Where the twin's clients ask."""
    serve = rig.recipe["vllm_serve"]
    address = rig.hosts.hosts[rig.head].address
    return Endpoint(f"http://{address}:{serve['port']}", str(serve["served_model_name"]))


def row_of(rig: Rig, code: str) -> Incident:
    """The incident of that code; LabError says why the twin cannot hold it."""
    if code in NOT_HELD:
        raise LabError(f"{code} is not on a twin: {NOT_HELD[code]}")
    row = HELD.get(code)
    if row is None:
        raise LabError(f"no incident {code!r}; a twin holds: {', '.join(HELD)}")
    if not row.on & rig.kinds:
        fit = ", ".join(one.code for one in HELD.values() if one.on & rig.kinds)
        raise LabError(f"{code} needs another rig ({' or '.join(sorted(row.on))}); here: {fit}")
    return row


def deal_incident(settings: LabSettings, code: str) -> None:
    """Breaks the twin, says what somebody noticed, and starts the clock.

    LabError where one is open, or where the twin does not serve: nothing can be told from a rig
    that was down before.
    """
    rig = rig_of(settings)
    row = row_of(rig, code)
    if noted(settings).exists():
        opened = json.loads(noted(settings).read_text())["code"]
        raise LabError(f"{opened} is not mended yet: make incident-check ID={opened}")
    answer = ask(endpoint(rig), CLIENT_S)
    if not answer.ok:
        raise LabError(f"the twin does not serve ({answer.detail}): pyinfra {rig.inventory} "
                       "deploys/serve.py -y")  # fmt: skip
    # noted first: what is half broken is mended as what is broken
    noted(settings).write_text(json.dumps({"code": code, "began": time.time()}) + "\n")
    with core.phase("something happens"):
        row.broken(rig)
    for line in symptom(rig, row):
        core.say_console(line)
    began = time.time()
    noted(settings).write_text(json.dumps({"code": code, "began": began}) + "\n")
    core.say_console(f"the clock runs; first look: pyinfra {rig.inventory} deploys/doctor.py -y")
    core.say_console(f"when it is mended: make incident-check ID={code}")


def symptom(rig: Rig, row: Incident) -> list[str]:
    """What an operator sees before any look at a cause: what was told, a client, the units."""
    answer = ask(endpoint(rig), CLIENT_S)
    lines = [f"told: {row.tells}", f"a client: {answer.detail}"]
    for name in rig.names:
        state, how, status = rig.hosts.unit(name, "ActiveState", "Result", "ExecMainStatus")
        lines.append(f"{name}: {ENGINE} is {state} ({how}, last exit status {status})")
    return lines


def doctor(rig: Rig) -> list[dict[str, Any]]:
    """The doctor's findings as data; LabError where it could not look."""
    done = pyinfra(rig, "doctor", "--data", "json=true")
    begin = re.search(r"^\[$|^\[\]$", done.stdout, re.MULTILINE)
    if begin is None:
        raise LabError(f"the doctor said nothing: {(done.stdout.strip().splitlines() or [''])[-1]}")
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(done.stdout[begin.start() :])[0]
    return found


def pyinfra(rig: Rig, deploy: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A runbook on the twin, as the operator would type it."""
    return incidents.run_deploy(rig.inventory, deploy, *arguments)


def faults(rig: Rig, row: Incident) -> list[str]:
    """What is still wrong: the doctor's findings, no answer of our own engine, what was left."""
    found = doctor(rig)
    wrong = [
        f"the doctor still says {one['code']} of {one['node']}: {one['summary']}"
        for one in found
        if one["severity"] == "block" or (one["code"] in row.codes and not row.warns)
    ]
    verified = pyinfra(rig, "verify")
    if verified.returncode != 0:
        wrong.append(f"verify fails: {reason(verified.stdout)}")
    for name in rig.names:
        left = rig.hosts.ssh(name, row.left)
        if left:
            wrong.append(f"left behind on {name}: {' '.join(left.split())}")
        (change, *_) = rig.hosts.changes(name) or [{"status": "COMMITTED", "id": ""}]
        if change["status"] == "OPEN":
            wrong.append(f"change {change['id']} is open on {name}")
    return wrong


def reason(text: str) -> str:
    """The last line of a runbook's output that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if "rror" in line or "not answer" in line]
    return (lines or text.strip().splitlines() or ["no word"])[-1]


def check_incident(settings: LabSettings, code: str) -> int:
    """Judges the open incident; 0 and its seconds when it is mended, else 1 and what is not."""
    rig = rig_of(settings)
    row = row_of(rig, code)
    try:
        opened = json.loads(noted(settings).read_text())
    except FileNotFoundError:
        raise LabError(f"no incident is open: make incident ID={code}") from None
    if opened["code"] != code:
        raise LabError(f"the open incident is {opened['code']}")
    seconds = time.time() - opened["began"]
    wrong = faults(rig, row)
    for line in wrong:
        core.say_console(f"{code}: {line}")
    if wrong:
        core.say_console(f"{code}: not mended after {seconds:.0f} s; the clock runs on")
        return 1
    row.after(rig)
    core.remove_tree(noted(settings))
    core.say_console(
        f"{code}: mended in {seconds:.0f} s: the doctor finds none of it, our own engine "
        "answered, nothing is left behind"
    )
    return 0


def mend(rig: Rig, row: Incident) -> Sequence[str]:
    """Mends by what the row names; a line a step. For who checks the table, not for practice."""
    said = []
    for step in row.mends:
        if KEPT_COPY in step:
            copies = rig.hosts.ssh(rig.head, f"sudo ls {incidents.DISK}/rigbook/{rig.head}")
            step = step.replace(KEPT_COPY, copies.split()[-1])
        step = step.replace(HEAD, rig.head)
        word, *rest = step.split()
        if word == "remedy":
            where, command = by_hand(next(one for one in doctor(rig) if one["code"] == rest[0]))
            rig.hosts.ssh(where, command)
            said.append(f"by hand on {where}: {command}")
            continue
        done = pyinfra(rig, word, *rest)
        said.append(f"{step}: exit status {done.returncode}")
        if done.returncode != 0:
            raise LabError(f"{row.code}: {step} failed: {reason(done.stdout)}\n{done.stdout}")
    return said


def by_hand(finding: Mapping[str, Any]) -> tuple[str, str]:
    """The host and the command of a remedy that is typed on a node (`on NODE: COMMAND`)."""
    node = str(finding["node"])
    return node, str(finding["remedy"]).split(f"on {node}: ")[1]


# `make rehearse`: a twin of a rig, and what it cannot show.


def make_rehearse(settings: LabSettings, inventory: str) -> None:
    """Makes the twin of the rig in an inventory file; says how it differs and what is next."""
    made = shape(settings, inventory, load_data(inventory))
    core.say_console(f"a twin of {inventory}: {', '.join(made.twin.names)}")
    for line in told(made):
        core.say_console(line)
    up(settings, made)
    core.say_console(f"next: pyinfra {made.twin.inventory} deploys/serve.py -y")
