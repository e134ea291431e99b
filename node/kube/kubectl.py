"""Ask the cluster: kubectl (or k3s's own) with a time limit at both ends, JSON out, no shell."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from typing import Any

from node.core import run, validate
from node.core.errors import CannotRead, NodeError
from node.core.run_as_owner import not_run

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
    ) -> run.Done:  # fmt: skip
        """Run one kubectl command; `rest` stands behind all of its flags. Raises CannotRead when it
        is not there or does not end.
        """
        limit = f"--request-timeout={max(1, int(timeout_s))}s"
        try:
            return run.run([*self.argv, *words, limit, *rest], timeout_s + 5, stdin=stdin)
        except (run.TimedOut, OSError) as error:
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
        chosen = "kubectl" if run.which("kubectl") else "k3s kubectl"
    argv = str(chosen).split()
    if run.which(argv[0]) is None:
        raise NodeError(
            f"there is no {argv[0]} on this host", "no_kubectl", "install it, or set kubectl"
        )
    path: str | None = None if kubeconfig is None else validate.path(kubeconfig, "kubeconfig")
    # it may name a program that gives the credentials
    for config in [path] if path else os.environ.get("KUBECONFIG", "").split(":"):
        wrong = run.not_roots(config) if os.geteuid() == 0 and config.startswith("/") else None
        if wrong is not None:
            raise not_run(f"kubectl with {config}", wrong, "sudo install -D -m 600 "
                          f"{shlex.quote(config)} {COPY}, then kubeconfig = '{COPY}' in "
                          "group_data")  # fmt: skip
    return Client([*argv, f"--kubeconfig={path}"] if path else argv)
