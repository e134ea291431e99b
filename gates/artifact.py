"""Image or venv as the recipe has it; pip's plan, image patches, JIT caches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from gates.core import (
    Observed,
    Violation,
    answering_nodes,
    collect_check,
    deploy_command,
    per_node,
    require,
    violation,
)
from gates.processes import is_up
from node.rules.text import repository
from schema.artifact import VLLM_INFO, Module, PipReport, VenvWheels, parse_pip_report, variant_of
from schema.compatibility import Needed, satisfies, within
from schema.plan import IN_CONTAINER, UNIT, Node, Plan, jit_caches_kept
from schema.recipe import Patch, WheelsSpec
from schema.snapshot import (
    Docker,
    FileState,
    Image,
    ImageFile,
    ImageFileMatch,
    NodeSnapshot,
    Unreadable,
    Venv,
)

# Images, venvs, patches and versions: whether what is installed is what the recipe needs.

# Gates of the engine's image: there, for this processor, the same content on every node.

# Names that Go (docker) and the kernel (uname -m) give to one architecture.
KERNEL_ARCH = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "riscv64": "riscv64"}


def image_name(plan: Plan) -> str | None:
    """The image that the recipe runs; None for an engine in a venv."""
    return plan.recipe.container.image if plan.recipe.container else None


def full_name(reference: str) -> str:
    """An image reference as docker lists it: short, with its tag or its digest."""
    short = reference
    for prefix in ("docker.io/library/", "docker.io/"):
        short = short.removeprefix(prefix)
    if "@" in short:
        return f"{repository(short)}@{short.partition('@')[2]}"
    return short if ":" in short.rpartition("/")[2] else f"{short}:latest"


def image_of(docker: Docker, reference: str) -> Image | None:
    """The image that the reference names on this host, or None."""
    wanted = full_name(reference)
    for image in docker.images:
        if image.id == reference or wanted in map(full_name, (*image.tags, *image.digests)):
            return image
    return None


def same_content(one: Image, other: Image) -> bool:
    """One RepoDigest in common, or equal layers and config.

    `.Id` says nothing: it differs between overlay2 and containerd stores (GLM-5.3-EXL3-2x#8). A
    digest of another registry may differ for equal content, so layers decide then, too.
    """
    digests = {digest.split("@")[-1] for digest in one.digests}
    if digests & {digest.split("@")[-1] for digest in other.digests}:
        return True
    return one.layers == other.layers and one.config_sha256 == other.config_sha256


def identity_of(image: Image) -> str:
    """What an image is compared by, short enough for a line."""
    digests = ", ".join(digest.split("@")[-1][:19] for digest in image.digests)
    top = image.layers[-1][:19] if image.layers else "none"
    return (
        f"digest {digests or 'none'}, {len(image.layers)} layers (top {top}), "
        f"config {image.config_sha256[:12]}"
    )


def move_image(plan: Plan, observed: Observed, target: Node) -> str:
    """The line that brings the image to `target`: from a node that has it, else by a pull."""
    reference = image_name(plan) or ""
    for node, snapshot in answering_nodes(plan, observed):
        if node.name == target.name or isinstance(snapshot.docker, Unreadable):
            continue
        if image_of(snapshot.docker, reference) is not None:
            return deploy_command(plan, "image", f"from={node.name}")
    return f"{deploy_command(plan, 'image')} (pulls {reference} once, then moves it)"


def _images(
    plan: Plan, observed: Observed
) -> tuple[list[tuple[Node, Image | None]], list[Violation]]:
    """The recipe's image on each node (a venv has none), and the nodes whose docker is unknown."""
    reference = image_name(plan)
    if reference is None:
        return [], []
    return collect_check(
        plan, observed, lambda _, s: image_of(require(s.docker, "docker"), reference)
    )


def image_present(plan: Plan, observed: Observed) -> list[Violation]:
    """The image is on every node before anything changes: a pull takes minutes and may fail."""
    images, found = _images(plan, observed)
    for node, image in images:
        if image is None:
            found.append(
                violation(
                    "image-missing",
                    node.name,
                    f"the image {image_name(plan)} is not on {node.name}",
                    evidence="; ".join(
                        f"{n.name}: {identity_of(i) if i else 'absent'}" for n, i in images
                    ),
                    remedy=move_image(plan, observed, node),
                )
            )
    return found


def image_equal(plan: Plan, observed: Observed) -> list[Violation]:
    """Every node runs the same bytes: one tag may name two builds (faults.md 41)."""
    images, found = _images(plan, observed)
    present = [(node, image) for node, image in images if image is not None]
    for node, image in present[1:]:
        first, its_image = present[0]
        if not same_content(its_image, image):
            found.append(
                violation(
                    "image-differs",
                    node.name,
                    f"{image_name(plan)} is another build on {node.name} than on {first.name}",
                    evidence="; ".join(f"{n.name}: {identity_of(i)}" for n, i in present),
                    remedy=move_image(plan, observed, node),
                )
            )
    return found


@per_node
def image_arch(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The image is built for the host's processor; else it ends with "exec format error"."""
    reference = image_name(plan)
    if reference is None:
        return
    image = image_of(require(snapshot.docker, "docker"), reference)
    arch = snapshot.identity.arch
    if image is not None and KERNEL_ARCH.get(image.arch, image.arch) != arch:
        yield violation(
            "image-arch",
            node.name,
            f"the image is for {image.arch}, {node.name} is {arch}",
            evidence=f"{reference}: {image.arch}; uname -m: {arch}",
            remedy=f"name an image for {shlex.quote(arch)} in "
            f"catalog/recipes/{plan.recipe.name}.yaml, container.image",
        )


IMAGE_GATES = (image_present, image_equal, image_arch)


# Gates of an engine in a venv: every piece that its start needs is there, of the right version.

ENTRY = "bin/vllm"


def venv_of(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Venv | None:
    """What the host says of the plan's venv; None for a container, or when it was not asked.

    UnknownSection when the host could not tell.
    """
    path = plan.specs[node.name].venv
    if path is None:
        return None
    return next((v for v in require(snapshot.venvs, "venvs") if v.path == path), None)


def own_venv(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Venv | None:
    """As `venv_of`, None where it cannot be told."""
    seen = snapshot.venvs if isinstance(snapshot.venvs, tuple) else ()
    return next((v for v in seen if v.path == plan.specs[node.name].venv), None)


def back(plan: Plan, node: Node) -> str:
    """The commands that bring a venv's engine back; pip runs as the venv's owner."""
    path, venv = shlex.quote(plan.specs[node.name].venv or ""), plan.recipe.venv
    pip = f"sudo -u $(stat -Lc %U {path}) {path}/bin/python -m pip install --force-reinstall"
    words = [f"vllm=={venv.version if venv and venv.version else 'VERSION'}"]
    if venv and venv.wheels:
        words += ["--no-index", f"--find-links={venv.wheels}"]
    words += venv.pip_args if venv else ()
    return (
        f"{deploy_command(plan, 'rollback')} where a change is open; else install it anew on "
        f"{node.name}: {pip} --no-deps {shlex.join(words)}"
    )


@per_node
def venv_there(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The venv and the interpreter that it was made from are there: a venv is a folder of links,
    and an upgrade of the system's Python takes what they lead to (faults.md 15).
    """
    path = plan.specs[node.name].venv
    if path is None:
        return
    venv = venv_of(plan, node, snapshot)
    if venv is None or venv.target is None:
        yield violation(
            "venv-missing",
            node.name,
            f"the venv {path} is not on {node.name}",
            evidence="was not looked at"
            if venv is None
            else f"{path} leads to no folder (a link whose target is gone, or nothing at all)",
            remedy=f"{deploy_command(plan, 'rollback')} where a change is open; else on "
            f"{node.name}: ls -l {shlex.quote(path)}",
            unknown=venv is None,
        )
    elif venv.python is None:
        version = shlex.quote(venv.python_version) if venv.python_version else ""
        place = shlex.quote(venv.base) if venv.base else "its former place"
        yield violation(
            "venv-python-missing",
            node.name,
            f"the Python that the venv of {node.name} was made from is gone",
            evidence=f"{venv.target}/bin/python leads to nothing that can be run; pyvenv.cfg: "
            f"home {venv.base or 'not given'}, version {venv.python_version or 'not given'}",
            remedy=f"on {node.name}: install Python {version} at {place} again "
            f"(ls -l {shlex.quote(f'{venv.target}/bin/python')})",
        )


@per_node
def venv_entry(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The program that the unit starts: `pip uninstall` takes bin/vllm, a restored package does
    not bring it back, and the unit ends with 127 (B3). A script whose first line names an
    interpreter that is gone ends the same way.
    """
    venv = venv_of(plan, node, snapshot)
    if venv is None or venv.target is None:
        return
    entry = f"{venv.target}/{ENTRY}"
    if venv.entry_kind != "file":
        lack = f"{entry} is {'not there' if venv.entry_kind == 'absent' else 'no file'}"
    elif not venv.entry_executable:
        lack = f"{entry} cannot be executed (chmod +x)"
    elif venv.entry_shebang_exists is False:
        lack = f"{entry} names the interpreter {venv.entry_shebang}, which is not there"
    else:
        return
    installed = ", ".join(venv.versions.get("vllm", ())) or "none"
    yield violation(
        "venv-entry-missing",
        node.name,
        f"the venv of {node.name} has no `vllm` program that can be run: the unit ends with 127",
        evidence=f"{lack}; the package beside it: vllm {installed}",
        remedy=back(plan, node),
    )


@per_node
def venv_version(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The installed engine is the one that the recipe was proven with, a nightly of it as well
    (its wheel is rotated away: B1); two dist-infos of one package are an install that was cut off.
    """
    venv = venv_of(plan, node, snapshot)
    if venv is None or venv.target is None:
        return
    found = venv.versions.get("vllm", ())
    wanted = plan.recipe.venv.version if plan.recipe.venv else None
    if len(found) == 1 and (wanted is None or satisfies(found[0], wanted)):
        return
    yield violation(
        "venv-version",
        node.name,
        f"the venv of {node.name} holds vllm {', '.join(found) or 'of no version'}"
        + (f", the recipe says {wanted}" if wanted else ""),
        evidence=f"dist-info folders of vllm in {venv.target}: {', '.join(found) or 'none'}",
        remedy=f"{back(plan, node)}; or write the version that is meant into "
        f"catalog/recipes/{plan.recipe.name}.yaml, venv.version",
    )


@per_node
def venv_user(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Who runs the engine: a user that exists (else status 217), and whose shared memory logind
    leaves alone. RemoveIPC deletes a regular user's at its last logout (vllm#54259).
    """
    venv = venv_of(plan, node, snapshot)
    if venv is None:
        return
    if not venv.user_exists:
        yield violation(
            "venv-user",
            node.name,
            f"the engine of {node.name} is to run as {venv.user}, whom nobody knows there",
            evidence=f"no user {venv.user} on {node.name}; systemd ends such a start with 217/USER",
            remedy=f"name a user of {node.name} in venv.user of "
            f"catalog/recipes/{plan.recipe.name}.yaml",
        )
    elif venv.shm_goes:
        yield violation(
            "remove-ipc",
            node.name,
            f"logind on {node.name} removes the shared memory of {venv.user} at the last logout",
            evidence=f"RemoveIPC is not `no`, {venv.user} is a regular user and does not linger; "
            "an engine that starts meanwhile dies of it (vllm#54259)",
            remedy=f"on {node.name}: sudo loginctl enable-linger {shlex.quote(venv.user or '')}",
            severity="warn" if is_up(snapshot) else None,
        )


VENV_GATES = (venv_there, venv_entry, venv_version, venv_user)


# What a node's build of the engine is, by its files: its version, and what it needs.

_FOLDER = re.compile(r"/vllm-([^/]+)\.dist-info/")


def is_there(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """Whether there is a build to look into; without docker's word that is asked all the same."""
    if plan.recipe.container is None:
        venv = own_venv(plan, node, snapshot)
        return venv is not None and venv.target is not None
    docker = snapshot.docker
    return isinstance(docker, Unreadable) or image_of(docker, image_name(plan) or "") is not None


def version_of(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str | None:
    """The version of the build's vLLM; None where it cannot be told.

    An image's is read from its files: the folder of pip's metadata names it. Labels do not, they
    are the base's; tags do not either, `nightly` moves. A build of a clone without tags calls
    itself 0.1.devN, whatever it is of (vllm PR#41834, a build of 2026-05-24).
    """
    if plan.recipe.container is None:
        venv = own_venv(plan, node, snapshot)
        names = set(venv.versions.get("vllm", ())) if venv else set()
    else:
        paths = (match.path for answer in _answers(snapshot, VLLM_INFO) for match in answer.matches)
        names = {found[1] for path in paths if (found := _FOLDER.search(path))}
    return told(names.pop()) if len(names) == 1 else None


def told(version: str) -> str | None:
    """The version, None for one that tells nothing."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    return None if parsed.release == (0, 1) and parsed.is_devrelease else version


def is_needed(what: Needed, plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """Whether the node's build needs it; UnknownSection where nobody could look into it."""
    require(snapshot.image_files, "image_files")
    if within(what.versions, version_of(plan, node, snapshot)) is False:
        return False
    unless = what.unless
    return unless is None or not any(
        match.count
        for answer in _answers(snapshot, unless.path)
        if answer.contains == unless.contains
        for match in answer.matches
    )


def _answers(snapshot: NodeSnapshot, path: str) -> Iterator[ImageFile]:
    """The answers about a path below the libraries."""
    if not isinstance(snapshot.image_files, Unreadable):
        yield from (a for a in snapshot.image_files if a.path.endswith(f"/{path}"))


# The gate of the modules that the engine imports only when it runs: they are in its build.


@per_node
def modules_whole(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A build without DeepGEMM starts, loads for minutes, and dies at its first request; one that
    was cloned without its submodules dies in its JIT (C2).
    """
    if not plan.recipe.modules or not is_there(plan, node, snapshot):
        return
    answers = require(snapshot.image_files, "image_files")
    there = [match.path for answer in answers for match in answer.matches]
    for module in plan.recipe.modules:
        missing = missing_files(module, there)
        if missing and is_needed(module, plan, node, snapshot):
            yield not_whole(module, node.name, missing, modules_where(plan, node))


def modules_where(plan: Plan, node: Node) -> str:
    """The build that was looked into: the image, or the venv's folder."""
    return image_name(plan) or str(plan.specs[node.name].venv)


def missing_files(module: Module, there: Sequence[str]) -> tuple[str, ...]:
    """The module's files that are not there, in the library folder that has most of them."""
    libraries = {
        path.removesuffix(f"/{name}") for path in there for name in module.files
        if path.endswith(f"/{name}")
    }  # fmt: skip
    rows = [tuple(n for n in module.files if f"{lib}/{n}" not in there) for lib in libraries]
    return min(rows, key=len, default=module.files)


def not_whole(module: Module, node: str, missing: Sequence[str], build: str) -> Violation:
    """The finding about a module that is not there, or not whole."""
    return violation(
        "module-missing",
        node,
        f"the module {module.name} is not whole: {module.reason}",
        evidence=f"not in {build}: {', '.join(missing)}",
        remedy=f"take the build that carries {module.name} with its submodules "
        "(git clone --recursive), see docs/runbooks/provenance.md",
    )


MODULES_GATES = (modules_whole,)


# The gate on what pip would do: asked with `pip install --dry-run`, before anything is installed.
#
# A rebuild that resolved torch anew got the CPU wheel, and the C extension did not load (C1). The
# nightly of the version that served was gone from its server: `pip freeze` could not bring it
# back,
# only the tar could (B5). An upgrade makes a verified backup before it installs anything.


def wheels(
    plan: Plan, spec: WheelsSpec, wanted: str, seen: Mapping[str, VenvWheels]
) -> list[Violation]:
    """The findings about an installation of `wanted` on every node.

    `seen` is what each node's pip said (deploys.plans.engine.ask_pip). A node that is not in
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
        item = parse_pip_report(report).item(spec.package) if report else None
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
        report = parse_pip_report(answer.wanted)
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


# Gates of the patches that a recipe needs inside its image.


@per_node
def patches_applied(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each required patch that the build needs stands in the image (or venv) once: without it a
    firmware hang (C4), applied twice an UnboundLocalError (C15). An image that is not there is
    `image-missing`'s finding, a venv `venv-missing`'s.
    """
    required = [patch for patch in plan.recipe.patches if patch.required]
    if not required or not is_there(plan, node, snapshot):
        return
    answers = {
        (a.path, a.contains): a.matches for a in require(snapshot.image_files, "image_files")
    }
    for patch in (p for p in required if is_needed(p, plan, node, snapshot)):
        yield from _one(plan, node, patch, answers.get((patch.path, patch.contains), ()))


def _one(
    plan: Plan, node: Node, patch: Patch, matches: tuple[ImageFileMatch, ...]
) -> Iterator[Violation]:
    """The finding about one patch; exactly one file with exactly `count` occurrences is right."""
    right = len(matches) == 1 and matches[0].count == patch.count
    if right:
        return
    image = image_name(plan)
    where = image or plan.specs[node.name].venv
    found = ", ".join(f"{match.path}: {match.count}" for match in matches) or "no such file"
    kind = "image" if image else "venv"
    doubled = any(match.count > patch.count for match in matches)
    yield violation(
        "patch-doubled" if doubled else "patch-missing",
        node.name,
        f"patch {patch.id} {'was applied more than once' if doubled else f'is not in the {kind}'}: "
        f"{patch.reason}",
        evidence=f"{where}: {patch.contains!r} in {found}; right: {patch.count} in one file",
        remedy=back(plan, node)
        if image is None
        else f"take the known-good image on {node.name}: sudo docker pull (or docker load) "
        f"the build that carries {patch.id} exactly once; never re-apply it in a container",
    )


IMAGE_PATCH_GATES = (patches_applied,)


# Gates of the caches of compiled kernels: whose they are, and whether a start finds them cold.

ROOT_USER = ("", "root", "0")


@per_node
def warm(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A cold cache costs minutes in the start, and seconds in requests of a new shape later.

    An engine does not use every library, so the caches of one mount are cold when all of them are.
    """
    if plan.recipe.container is None or is_up(snapshot):
        return
    files = {state.path: state for state in require(snapshot.files, "files")}
    spec = plan.specs[node.name]
    caches = {name: path for name, path in jit_caches_kept(spec).items() if path in files}
    for source, _, _ in spec.volumes:
        here = {n: p for n, p in caches.items() if p == source or p.startswith(f"{source}/")}
        if here and all(_cold(files[path]) for path in here.values()):
            yield _told(plan, node, here)


def _cold(state: FileState) -> bool:
    return state.kind == "absent" or (state.kind == "directory" and state.size == 0)


def _told(plan: Plan, node: Node, cold: Mapping[str, str]) -> Violation:
    budget = plan.recipe.expect.start_budget_s
    names = ", ".join(cold)
    return violation(
        "jit-cache-cold",
        node.name,
        f"{node.name} has no compiled kernels yet ({names}): this start compiles them",
        evidence=f"absent or empty: {', '.join(cold.values())}; the start may take "
        f"start_budget_s: {budget} s",
        remedy=f"nothing, the start fills them; if it outlasts its budget, raise "
        f"expect.start_budget_s in catalog/recipes/{plan.recipe.name}.yaml; to watch it, on "
        f"{node.name}: journalctl -fu {UNIT}",
    )


@per_node
def writable(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """serve makes the folder root's; an image that runs as somebody else cannot write in it."""
    box, folders = plan.recipe.container, plan.specs[node.name].jit_folders
    if box is None or not folders:
        return
    image = image_of(require(snapshot.docker, "docker"), box.image)
    user, _, group = (image.user if image else "").partition(":")
    if user in ROOT_USER:
        return
    states = {state.path: state for state in require(snapshot.files, "files")}
    state = states.get(folders[-1])
    owner = state.uid if state is not None and state.kind == "directory" else None
    if owner is not None and (str(owner) == user or (owner != 0 and not user.isdigit())):
        return
    number = user if user.isdigit() else "UID"
    owners = f"-o {number} -g {group if group.isdigit() else number}"
    made = f"sudo install -d {owners} {shlex.quote(folders[-1])}"
    if not user.isdigit():
        made = (
            f"sudo docker run --rm --entrypoint id {shlex.quote(box.image)} says UID; then {made}"
        )
    now = "absent, and serve makes it root's" if owner is None else f"uid {owner}"
    yield violation(
        "jit-cache-owner",
        node.name,
        f"{box.image} runs as {user}, which cannot write compiled kernels on {node.name}",
        evidence=f"{folders[-1]} ({IN_CONTAINER} in the container): {now}",
        remedy=f"on {node.name}: {made}; or container.jit_caches: false in "
        f"catalog/recipes/{plan.recipe.name}.yaml",
    )


JIT_CACHE_GATES = (writable, warm)
