"""Ask the cluster: kubectl (or k3s's own) with a time limit at both ends, JSON out, no shell."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

from node.core import run as core_run
from node.core import validate
from node.core.errors import CannotRead, NodeError
from node.core.owner import not_run

# Names of the cluster and of variables, and texts of a command line, checked.

VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
LABEL = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


def kube_name(value: Any, where: str) -> str:
    """Gives a name of the cluster. Raises NodeError for anything that is none."""
    found = validate.text(value, where, 253)
    if not LABEL.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not a Kubernetes name")
    return found


def variable_name(value: Any, where: str) -> str:
    """Gives an environment variable's name."""
    found = validate.text(value, where, 200)
    if not VARIABLE.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not a variable's name")
    return found


def values_of(value: Any, where: str) -> dict[str, str | None]:
    """Gives variables to set: name to text."""
    return {variable_name(key, where): text for key, text in _texts(value, where).items()}


def edits_of(value: Any, where: str) -> dict[str, str]:
    """Gives texts of a command line to replace: old to new. None is a variable's name, which is
    the key of a value.
    """
    found = _texts(value, where)
    for old, new in found.items():
        validate.text(old, where, 8192)
        if not old or not new or old == new or VARIABLE.match(old):
            raise validate.bad(f"{where}: {old[:60]!r} is no text with another one in its place")
    return found


def _texts(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > 50:
        raise validate.bad(f"{where} is not an object of at most 50 rows")
    return {key: validate.text(text, f"{where}.{key}", 8192) for key, text in value.items()}


CLIENTS = ("kubectl", "k3s kubectl", "auto")
ASK_S = 20
# where a kubeconfig is copied to that another user may change
COPY = "/etc/rigbook/kubeconfig"
MAX_OUT = 64 << 20


class Client:
    """A kubectl command line without its verb, and the cluster's file where one is named."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv

    def run(
        self, words: Sequence[str], timeout_s: float = ASK_S, rest: Sequence[str] = (),
        stdin: str | None = None,
    ) -> core_run.Done:  # fmt: skip
        """Run one kubectl command; `rest` stands behind all of its flags. Raises CannotRead when it
        is not there or does not end.
        """
        limit = f"--request-timeout={max(1, int(timeout_s))}s"
        try:
            return core_run.run([*self.argv, *words, limit, *rest], timeout_s + 5, stdin=stdin)
        except (core_run.TimedOut, OSError) as error:
            raise CannotRead(f"{' '.join(self.argv)}: {error}") from None

    def json(self, words: Sequence[str], timeout_s: float = ASK_S) -> Any:
        """Gives a command's JSON. Raises CannotRead with kubectl's own last line."""
        done = self.run([*words, "--output=json"], timeout_s)
        if done.rc != 0:
            raise CannotRead(f"kubectl {' '.join(words[:2])}: {done.last_line()[:400]}")
        if len(done.out) > MAX_OUT:
            raise CannotRead(f"kubectl {' '.join(words[:2])}: more than {MAX_OUT >> 20} MiB")
        try:
            return json.loads(done.out)
        except ValueError:
            raise CannotRead(f"kubectl {' '.join(words[:2])} gave no JSON") from None


def client(words: Any, kubeconfig: Any = None) -> Client:
    """Gives the client: `kubectl`, `k3s kubectl`, or `auto`: the first that is there."""
    chosen = validate.choice(words, "kubectl", CLIENTS)
    if chosen == "auto":
        chosen = "kubectl" if core_run.which("kubectl") else "k3s kubectl"
    argv = str(chosen).split()
    if core_run.which(argv[0]) is None:
        raise NodeError(
            f"there is no {argv[0]} on this host", "no_kubectl", "install it, or set kubectl"
        )
    path: str | None = None if kubeconfig is None else validate.path(kubeconfig, "kubeconfig")
    # it may name a program that gives the credentials
    for config in [path] if path else os.environ.get("KUBECONFIG", "").split(":"):
        wrong = core_run.not_roots(config) if os.geteuid() == 0 and config.startswith("/") else None
        if wrong is not None:
            raise not_run(f"kubectl with {config}", wrong, "sudo install -D -m 600 "
                          f"{shlex.quote(config)} {COPY}, then kubeconfig = '{COPY}' in "
                          "group_data")  # fmt: skip
    return Client([*argv, f"--kubeconfig={path}"] if path else argv)
