"""Gates of an engine in a venv: every piece that its start needs is there, of the right version."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.state import is_up
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.files import Venv
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.compatibility import satisfies

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


GATES = (venv_there, venv_entry, venv_version, venv_user)
