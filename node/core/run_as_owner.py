"""Run a program as a folder's owner: its configuration counts, and files stay its own."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import pwd
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence

from node.core.errors import NodeError
from node.core.run import Done, environment, not_roots

_PR_SET_PDEATHSIG = 1


class Owner:
    """Who owns a folder, and how to run a program as that user (root's stay root's).

    `instead`: a user by name, in the owner's place.
    """

    def __init__(self, folder: str, instead: str | None = None) -> None:
        info = os.stat(folder)
        self.folder, self.uid, self.gid = folder, info.st_uid, info.st_gid
        if instead is not None:
            self.uid, self.gid = _user(instead)
        self.env: dict[str, str] = environment()
        self.user: str | None = None
        if os.geteuid() != 0 or self.uid == 0:
            return
        try:
            user = pwd.getpwuid(self.uid)
        except KeyError:
            raise NodeError(f"{folder} belongs to no user of this host", "no_owner") from None
        self.user, self.gid = user.pw_name, user.pw_gid
        self.env.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)

    def _become(self) -> None:
        """What the child does before it becomes the program."""
        if self.user is not None:
            os.initgroups(self.user, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)
        # after setuid, which clears it: killed with us, it must not go on changing files
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    def start(
        self, argv: Sequence[str], extra: dict[str, str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Gives the program as it runs, in a group of its own. Raises NodeError (no_program,
        not_roots).
        """
        env = {**self.env, **extra}
        if os.geteuid() == 0 and self.user is None:
            self._require_roots_own(argv, env["PATH"])
        try:
            return subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd="/",
                start_new_session=True,
                preexec_fn=self._become,
            )
        except OSError as error:
            raise NodeError(f"{argv[0]}: {error.strerror}", "no_program") from None

    def _require_roots_own(self, argv: Sequence[str], path: str) -> None:
        """Raise NodeError where another user could change what root is about to run: the program
        and what it is told to run, the folder, and the packages of one that is a venv.
        """
        program = shutil.which(argv[0], path=path) or argv[0]
        packages = glob.glob(os.path.join(glob.escape(self.folder), "lib/python*/site-packages"))
        for one in (self.folder, program, *argv[1:2], *packages):
            try:
                wrong = not_roots(one) if one.startswith("/") else None
            except OSError as error:
                raise NodeError(f"{one}: {error.strerror}", "no_program") from None
            if wrong is not None:
                raise not_run(argv[0], wrong)

    def run(self, argv: Sequence[str], timeout_s: float, extra: dict[str, str]) -> Done:
        """Gives the program's exit status and output; its whole group is ended after the time.

        Raises NodeError (timeout, no_program).
        """
        child = self.start(argv, extra)
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            # a grandchild in a session of its own may hold the pipes: it is not waited for
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=1)
            raise NodeError(f"{argv[0]} did not end in {timeout_s:g} s", "timeout") from None
        return Done(
            child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )


def not_run(what: str, wrong: str, remedy: str = "") -> NodeError:
    """Gives the error about what root is not to run or read, for `wrong` is another user's."""
    return NodeError(
        f"{what} is not run as root: another user may change {wrong}",
        "not_roots",
        remedy
        or f"ls -ld {shlex.quote(wrong)}; give it to root, or the whole tree to its user: "
        "sudo chown -R USER: TREE",
    )


def _user(name: str) -> tuple[int, int]:
    """Gives a user's uid and gid. Raises NodeError (`no_user`)."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NodeError(f"{name} is no user of this host", "no_user") from None
    return found.pw_uid, found.pw_gid
