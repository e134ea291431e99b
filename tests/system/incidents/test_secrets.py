"""A recipe's secrets on the pair with the real vLLM in containers: the engine has them, and nobody
else sees one. The file of the tower's is tests/system/venv/test_4_adopt.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_lines import CommandLines
from tests.system.canary import NODE_FILE, Keys, held, said, whole_way
from tests.system.engine.steps import head
from tests.system.rehearsal import Done, Lab


@pytest.fixture
def keys(serving: Lab, tmp_path: Path) -> Iterator[Keys]:
    made = Keys(tmp_path, "tiny", f"K3Y{os.urandom(8).hex()}", f"T0K{os.urandom(8).hex()}")
    made.put(serving, list(serving.hosts))
    yield made
    for host in serving.hosts:
        serving.ssh(host, f"sudo rm -f {NODE_FILE}")


def test_the_looks_can_find_a_value(serving: Lab, keys: Keys) -> None:
    """A command line, the journal, a file that all may read, a file that root alone reads."""
    with CommandLines(keys.key) as poll:
        serving.ssh("test2", f"sh -c 'sleep 2; : {keys.key}'")
    assert poll.found
    serving.ssh("test2", f"logger {keys.token}")
    assert said(serving, "test2", keys, keys.token, "not there") == [keys.token]
    serving.ssh("test2", "cat >/tmp/rigbook-open", stdin=keys.key)
    try:
        assert held(serving, "test2", "nobody", keys.key) == ["/tmp/rigbook-open"]
        assert NODE_FILE in held(serving, "test2", "root", keys.token)
        assert held(serving, "test2", "nobody", keys.token) == []
    finally:
        serving.ssh("test2", "rm /tmp/rigbook-open")


def test_secrets_reach_the_engine_and_nothing_else(serving: Lab, keys: Keys) -> None:
    def deploy(name: str, *words: str) -> Done:
        return serving.pyinfra(name, *words)

    whole_way(serving, deploy, list(serving.hosts), head(serving).base_url, keys)


def test_a_key_of_before_is_asked_with_in_a_rollback(
    serving: Lab, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former engine wants the former key: RIGBOOK_API_KEY names it for that run."""
    assert serving.pyinfra("serve", *keys.words).rc == 0
    former: Any = keys.key
    keys.write(f"3{former}")
    assert serving.pyinfra("serve", *keys.words).rc == 0
    monkeypatch.setenv("RIGBOOK_API_KEY", former)
    newest = str(serving.changes("test1")[0]["id"])
    done = serving.pyinfra("rollback", *keys.words, "--data", f"change={newest}")
    assert done.rc == 0 and "serves again" in done.text, done.text
    monkeypatch.delenv("RIGBOOK_API_KEY")
    assert serving.pyinfra("serve").rc == 0
