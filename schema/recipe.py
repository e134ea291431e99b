"""A recipe and what stands in it: flags, patches, placeholders, known versions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from node.rules.secret import has_credentials, holds_secret, is_reported
from node.rules.text import PACKAGE
from schema.compatibility import FilePatch, Needed, NeededModule, PatchTool
from schema.core import (
    AbsolutePath,
    Frozen,
    HiddenValueError,
    Name,
    argument,
    env_name,
    flag_name,
    home_path,
    image_reference,
    memory_size,
    mount_path,
    public,
    single_line,
)
from schema.vllm import check_flag, check_flags, check_placeholders

# Where the values of an engine's secrets come from. The values themselves stand in no recipe.

# what glibc of every program that systemd starts obeys, before env -i can clear it
LOADS_CODE = re.compile(r"(?:LD_\w+|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH)\Z")
_SOURCES = ("env", "file", "node_file")


def operator_path(value: str) -> str:
    """A path on the operator's machine: absolute, or below the home (`~/`)."""
    if not single_line(value).startswith(("/", "~/")):
        raise ValueError("is not a path on this machine; allowed: /a/path or ~/a/path")
    return value


class SecretSource(Frozen):
    """One source: a variable of the operator's shell, a file of the operator's, or a file on each
    node (`~`: the login user's home there).
    """

    env: Annotated[str, AfterValidator(env_name)] | None = None
    file: Annotated[str, AfterValidator(operator_path)] | None = None
    node_file: Annotated[str, AfterValidator(home_path)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> SecretSource:
        named = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(named) != 1:
            told = f"names {' and '.join(named)}" if named else "names no source"
            raise ValueError(f"{told}; allowed: one of {', '.join(_SOURCES)}")
        return self


def check_names(secrets: Mapping[str, SecretSource]) -> Mapping[str, SecretSource]:
    """The secrets, when no host would report the value of one; else ValueError."""
    for name in filter(is_reported, secrets):
        prefix = name.partition("_")[0]
        raise ValueError(
            f"{name} would be told: rigbook reports variables of {prefix}_, and masks those with "
            "TOKEN, KEY, SECRET, PASSWORD or AUTH in the name; allowed: another name"
        )
    return secrets


def check_public(values: Mapping[str, str]) -> Mapping[str, str]:
    """The values, when none is a secret by its name; else ValueError with the way out."""
    for name in filter(holds_secret, values):
        way = f"allowed: secrets: {{{name}: {{env: NAME}}}}, or file or node_file for env"
        raise ValueError(f"{name} is a secret by its name; {way}")
    return values


def conflicts(
    secrets: Mapping[str, SecretSource], env: Collection[str], forbidden: Mapping[str, str]
) -> Iterator[str]:
    """What is wrong with the secrets beside the recipe's other keys, a line each."""
    for name in secrets:
        if LOADS_CODE.match(name):
            yield f"secrets.{name}: loads code into root's programs too; allowed: under env"
        if name in env:
            yield f"secrets.{name}: stands under env as well; allowed: one of them"
        if name in forbidden:
            yield f"secrets.{name}: is forbidden by this recipe: {forbidden[name]}"


# What pip installs as a rig's engine, and the torch it may bring: a recipe's `wheels` section.

_VARIANT = re.compile(r"(cpu|(cu|rocm|xpu)[0-9.]*)\Z")


def package_name(value: str) -> str:
    """The value, when it is a distribution's name as PEP 508 writes it; ValueError otherwise."""
    if not PACKAGE.match(value):
        raise ValueError("is not a package's name; allowed: letters, digits and . _ -")
    return value


def variant(value: str) -> str:
    """The value, when it is a build variant of torch; ValueError otherwise."""
    if not _VARIANT.match(value):
        raise ValueError("is not a variant of torch; allowed: cpu, or such as cu130, cu12, rocm6.4")
    return value


class WheelsSpec(Frozen):
    """The distribution that holds the engine, and the variant that its torch must have.

    `torch_variant` None: what is installed now. Where pip looks is the rig's own pip
    configuration, and what the recipe's venv says besides.
    """

    package: Annotated[str, AfterValidator(package_name)] = "vllm"
    torch_variant: Annotated[str, AfterValidator(variant)] | None = None


# The second runtime: an engine that lives in a virtual environment, under a unit of its own.

# PEP 440, as far as releases of an engine go: 0.19.2rc1, 0.32.0+cpu, 0.20.1rc1.dev16+g7a1eb8ac2
_VERSION = re.compile(r"[0-9][0-9a-zA-Z]*(\.[0-9a-zA-Z]+)*(\+[0-9a-zA-Z]+(\.[0-9a-zA-Z]+)*)?\Z")
# Where wheels come from and which are taken; what moves an install elsewhere is not among them.
_PIP = re.compile(
    r"(--pre|--no-index|--no-deps|--prefer-binary"
    r"|--(index-url|extra-index-url|find-links|constraint|only-binary|trusted-host)=\S+)\Z"
)


def version_text(value: str) -> str:
    """A version of a Python distribution, such as 0.19.2rc1 or 0.32.0+cpu."""
    if not _VERSION.match(value):
        raise ValueError("is not a version; allowed: such as 0.19.2rc1 or 0.32.0+cpu")
    return value


def pip_argument(value: str) -> str:
    """One argument of `pip install` that says where wheels come from, as --option=value."""
    if has_credentials(value):
        raise HiddenValueError(
            "holds a URL with a user name or password, which pip's command line would show to all; "
            "allowed: the URL without them, and the credentials in the pip.conf or ~/.netrc "
            "of the venv's owner on the node"
        )
    if not _PIP.match(single_line(value)):
        raise ValueError(
            "is not allowed for pip here; allowed: --pre --no-index --no-deps --prefer-binary, "
            "and --index-url= --extra-index-url= --find-links= --constraint= --only-binary= "
            "--trusted-host= with a value"
        )
    return value


Version = Annotated[str, AfterValidator(version_text)]


class VenvSpec(Frozen):
    """A venv with the engine. `path` is its folder, or a link to the active one of several.

    `user` None: the login user of the node. `version` is what the distribution `vllm` in it must
    be. `wheels` (a folder on the node) and `pip_args` say where an upgrade takes wheels from.
    """

    path: Annotated[str, AfterValidator(home_path)]
    user: Name | None = None
    version: Version | None = None
    wheels: AbsolutePath | None = None
    pip_args: tuple[Annotated[str, AfterValidator(pip_argument)], ...] = ()


# A recipe: one model with its engine, its flags, its profiles and what we expect of it.
#
# The YAML keeps the shape of the third seed post. A nested map under `vllm_serve` becomes one JSON
# argument. Values that differ per node are placeholders (schema.vllm lists them),
# in
# env and in the texts of vllm_serve; `~` at the start of a volume is the login user's home on the
# node.

Line = Annotated[str, AfterValidator(single_line)]
Argument = Annotated[str, AfterValidator(argument)]
EnvName = Annotated[str, AfterValidator(env_name)]
Public = Annotated[str, AfterValidator(public), AfterValidator(single_line)]
EnvValue = Annotated[Public, AfterValidator(check_placeholders)]
FlagName = Annotated[str, AfterValidator(flag_name)]
HomePath = Annotated[str, AfterValidator(home_path)]
Secrets = Annotated[dict[EnvName, SecretSource], AfterValidator(check_names)]
OF_THE_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")
HUB_CACHE = "~/.cache/huggingface/hub"
# Twice what the seed gives 149 GB on two GB10 (8 minutes cold): a first start compiles, too.
START_BUDGET_S = 1800
# A flag's value: a scalar, a list (repeated values of one flag) or a map (one JSON argument).
Flags = Annotated[
    dict[FlagName, Annotated[JsonValue, AfterValidator(check_flag)]], AfterValidator(check_flags)
]


class Volume(Frozen):
    """A bind mount of the engine's container; `source` may start with `~`."""

    source: HomePath
    target: Annotated[str, AfterValidator(mount_path)]
    read_only: bool = False


class ContainerSpec(Frozen):
    """How the engine's container runs.

    `gpus` is what `docker run --gpus` takes, or CDI devices (nvidia.com/gpu=all); None on CPU rigs.
    `runtime: nvidia` beside it is left out: it adds nothing, and not every docker has it.
    `jit_caches` False: caches of compiled kernels stay where the image has them, and go with it.
    """

    image: Annotated[str, AfterValidator(image_reference)]
    runtime: Name | None = None
    gpus: Argument | None = None
    ipc: Literal["host", "private"] = "host"
    privileged: bool = False
    shm_size: Annotated[str, AfterValidator(memory_size)] | None = None
    volumes: tuple[Volume, ...] = ()
    jit_caches: bool = True


class MultiNode(Frozen):
    """The rendezvous of a model that runs over several nodes."""

    nnodes: Annotated[int, Field(ge=2, le=64)]
    master_port: Annotated[int, Field(ge=1024, le=65535)]


class Profile(Frozen):
    """A named set of overrides of `vllm_serve`; a null value drops the flag."""

    description: Line
    vllm_serve: Flags


class ForbiddenEnv(Frozen):
    """A variable that must not be set (to `value`, or at all when null), and why."""

    name: EnvName
    value: Line | None = None
    reason: Line


class Patch(Needed):
    """A patch that the image must carry: `count` times `contains` in `path` inside the image.

    In a venv recipe `path` counts from the venv's folder: /lib/python3*/site-packages/…

    `path` may hold shell wildcards (`*`), because the folder's name follows the Python version;
    it must then match one file. `count` and `path` are those of the builds that need it
    (`versions`, `unless`): another build has other code.
    """

    id: Name
    path: AbsolutePath
    contains: Line
    count: Annotated[int, Field(ge=1)]
    required: bool = True
    reason: Line


def _in_the_hub_cache(weights: Mapping[str, Any]) -> str:
    """The folder of these weights in the hub's cache; an empty text where the source is none."""
    source = str(weights["source"])
    return f"{HUB_CACHE}/models--{source.replace('/', '--')}" if OF_THE_HUB.match(source) else ""


class WeightsSpec(Frozen):
    """Where the weights lie on the node and what the loader reads.

    A `source` of the hub (OWNER/NAME) has its folder in the login user's hub cache as `path`,
    where none is given.
    """

    source: Line
    path: HomePath = Field(default_factory=_in_the_hub_cache, validate_default=True)
    format: Literal["safetensors", "gguf"] = "safetensors"
    shards: Annotated[int, Field(ge=1)] | None = None


class Baseline(Frozen):
    """Measured decode rate at a concurrency, in tokens a second over all streams, whole answers of
    `tokens` tokens each.
    """

    profile: Name
    concurrency: Annotated[int, Field(ge=1, le=256)]
    tokens_per_s: Annotated[float, Field(gt=0)]
    tokens: Annotated[int, Field(ge=16, le=8192)] = 256


class Expect(Frozen):
    """What a healthy engine of this recipe does."""

    start_budget_s: Annotated[int, Field(ge=10, le=7200)] = START_BUDGET_S
    reasoning: bool = False
    tools: bool = False
    needs_nvidia: bool = True
    # Between nodes: `required` takes a start back that does not prove it, `wanted` warns.
    rdma: Literal["required", "wanted"] | None = None
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    baselines: tuple[Baseline, ...] = ()
    # An upgrade that decodes slower than (1 - tolerance) x the baseline goes back.
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.15


def _of_the_model(recipe: Mapping[str, Any]) -> WeightsSpec:
    """The weights of a recipe that does not name them: those that vLLM finds by the model's name;
    without a path where the model is one itself.
    """
    model = str(recipe["vllm_serve"].get("model", ""))
    return WeightsSpec.model_construct(source=model, path=_in_the_hub_cache({"source": model}))


def _only_profile(recipe: Mapping[str, Any]) -> str:
    """The name of the only profile; an empty text where there are several."""
    names = list(recipe["profiles"])
    return names[0] if len(names) == 1 else ""


class Recipe(Frozen):
    """A recipe as loaded; `name` is the file's name without `.yaml`.

    The engine runs in a container on each node, or in a venv: one of `container` and `venv`.
    """

    name: Name
    model: Line
    description: Line
    container: ContainerSpec | None = None
    venv: VenvSpec | None = None
    env: Annotated[dict[EnvName, EnvValue], AfterValidator(check_public)] = Field(
        default_factory=dict
    )
    secrets: Secrets = Field(default_factory=dict)
    vllm_serve: Flags
    weights: WeightsSpec = Field(default_factory=_of_the_model)
    multi_node: MultiNode | None = None
    profiles: Annotated[dict[Name, Profile], Field(min_length=1)] = Field(
        default_factory=lambda: {"default": Profile(description="as it stands", vllm_serve={})}
    )
    default_profile: Name = Field(default_factory=_only_profile)
    forbidden_env: tuple[ForbiddenEnv, ...] = ()
    patches: tuple[Patch, ...] = ()
    file_patches: tuple[FilePatch, ...] = ()
    patch_tools: tuple[PatchTool, ...] = ()
    modules: tuple[NeededModule, ...] = ()
    wheels: WheelsSpec | None = None
    expect: Expect = Expect()

    @model_validator(mode="after")
    def _default_profile_exists(self) -> Recipe:
        if self.default_profile not in self.profiles:
            known = ", ".join(sorted(self.profiles))
            raise ValueError(f"default_profile: is {self.default_profile!r}; allowed: {known}")
        return self

    @model_validator(mode="after")
    def _one_runtime(self) -> Recipe:
        if (self.container is None) == (self.venv is None):
            told = "neither container nor venv" if self.venv is None else "container and venv"
            raise ValueError(f"has {told}; allowed: one of them, which runs the engine")
        if self.venv is not None and self.multi_node is not None:
            raise ValueError("multi_node: with venv; allowed: without, a venv serves on one node")
        return self

    @model_validator(mode="after")
    def _required_flags(self) -> Recipe:
        model, port = self.vllm_serve.get("model"), self.vllm_serve.get("port", 8000)
        if type(model) is not str:
            raise ValueError(
                "vllm_serve.model: is missing; allowed: the model's path for the engine"
            )
        if type(port) is not int or not 0 < port < 65536:
            raise ValueError(f"vllm_serve.port: is {port!r}; allowed: a number from 1 to 65535")
        if not self.weights.path:
            raise ValueError(
                "weights: is missing; allowed: source and path (a model OWNER/NAME needs neither)"
            )
        for name, profile in self.profiles.items():
            fixed = sorted({"model", "port", "served_model_name"} & profile.vllm_serve.keys())
            if fixed:
                raise ValueError(
                    f"profiles.{name}.vllm_serve: sets {', '.join(fixed)}; allowed: any other flag "
                    "(clients must find the same model at the same place in every profile)"
                )
        return self

    @model_validator(mode="after")
    def _no_forbidden_env(self) -> Recipe:
        for rule in self.forbidden_env:
            if rule.name in self.env and rule.value in (None, self.env[rule.name]):
                raise ValueError(f"env.{rule.name}: is forbidden by this recipe: {rule.reason}")
        return self

    @model_validator(mode="after")
    def _rdma_can_be_proven(self) -> Recipe:
        if self.expect.rdma is not None and self.env.get("NCCL_DEBUG") != "INFO":
            raise ValueError(
                "expect.rdma: without env.NCCL_DEBUG: INFO; allowed: with it, what NCCL then logs "
                "is the proof"
            )
        return self

    @model_validator(mode="after")
    def _secrets_beside_env(self) -> Recipe:
        never = {rule.name: rule.reason for rule in self.forbidden_env if rule.value is None}
        for problem in conflicts(self.secrets, self.env, never):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _baselines_of_known_profiles(self) -> Recipe:
        for baseline in self.expect.baselines:
            if baseline.profile not in self.profiles:
                known = ", ".join(sorted(self.profiles))
                raise ValueError(
                    f"expect.baselines: profile {baseline.profile!r} is unknown; allowed: {known}"
                )
        return self

    @model_validator(mode="after")
    def _patches_have_one_name_each(self) -> Recipe:
        for key in ("patches", "file_patches", "patch_tools"):
            names = [row.id for row in getattr(self, key)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{key}: {', '.join(twice)} stands twice; allowed: each id once")
        return self

    @property
    def port(self) -> int:
        """The port on which the head answers clients."""
        return int(str(self.vllm_serve.get("port", 8000)))

    @property
    def served_model_name(self) -> str:
        """The name that clients ask for."""
        names = self.vllm_serve.get("served_model_name") or self.vllm_serve["model"]
        return str(names[0] if isinstance(names, list) else names)
