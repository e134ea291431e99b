"""The lab with the real vLLM, on which nothing of rigbook's is installed: others serve there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.system.adopt import setups
from tests.system.adopt.setups import Setup, has_script, keep_script, newest, serves
from tests.system.rehearsal import Lab, rehearsal

Served = Callable[[Setup], AbstractContextManager[Lab]]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Both hosts with the image and a script of somebody else's, made of what serve rendered."""
    with rehearsal() as made:
        setups.provide(made.settings)
        # a lab that was kept may have a tower, too
        made.hosts = {name: host for name, host in made.hosts.items() if host.has_fabric}
        if not all(has_script(made, host) for host in made.hosts):  # of a lab that was kept
            done = made.pyinfra("serve")
            assert done.rc == 0, done.text
            for host in made.hosts:
                keep_script(made, host)
            gone = made.pyinfra("rollback", "--data", f"change={newest(made)['id']}")
            assert gone.rc == 0, gone.text
        yield made


@pytest.fixture
def served_by(lab: Lab) -> Served:
    """Has a setup serve for the time of a block, and takes it and ours away after it."""

    @contextmanager
    def serving(setup: Setup) -> Iterator[Lab]:
        try:
            serves(lab, setup)
            yield lab
        finally:
            for host in lab.hosts:
                change = newest(lab, host)
                if change["deploy"] == "adopt" and change["status"] == "COMMITTED":
                    lab.pyinfra("rollback", "--data", f"change={change['id']}")
                lab.ssh(host, "sudo sh >/dev/null 2>&1", stdin=setup.remove, check=False)

    return serving
