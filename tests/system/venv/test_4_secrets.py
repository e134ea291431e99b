"""A recipe's secrets on the tower: systemd reads them for a user who may not read their file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.canary import FILE, NODE_FILE, Keys, whole_way
from tests.system.venv.steps import Tower


@pytest.fixture
def keys(serving: Tower, tmp_path: Path) -> Iterator[Keys]:
    # What systemd's quoting has to carry.
    key, token = f"K3Y{os.urandom(8).hex()}$`\"'\\%n#", f"T0K{os.urandom(8).hex()} x $HOME"
    made = Keys(tmp_path, "tiny-venv", key, token)
    made.put(serving, [serving.name])
    yield made
    serving.on(f"sudo rm -f {NODE_FILE}")


def test_secrets_reach_the_engine_and_nothing_else(serving: Tower, keys: Keys) -> None:
    whole_way(serving, serving.deploy, [serving.name], serving.endpoint.base_url, keys)


def test_the_values_arrive_whole(serving: Tower, keys: Keys) -> None:
    done = serving.deploy("serve", *keys.words)
    assert done.rc == 0, done.text
    environ = serving.on(f"sudo cat /proc/{serving.main_pid()}/environ").split("\0")
    assert {f"VLLM_API_KEY={keys.key}", f"HF_TOKEN={keys.token}"} <= set(environ)
    assert serving.on(f"sudo -u rig cat {FILE} 2>&1 || true").endswith("Permission denied")
    assert serving.deploy("serve").rc == 0
