"""pyinfra itself, with every ssh channel that asks a host for something counted.

`python -m tests.bench.count_execs COUNTS.json ARGUMENTS...` runs `pyinfra ARGUMENTS...` in this
process and writes `{peer address: number of remote commands}`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

# First: it patches the standard library for gevent.
from pyinfra_cli.main import main as pyinfra  # isort: skip
from paramiko.channel import Channel


def count_channels(counts: Counter[str]) -> None:
    """Counts each command, shell and subsystem (SFTP) that a channel starts, by peer."""

    def counted(start: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(channel: Channel, *args: Any, **kwargs: Any) -> Any:
            counts[channel.get_transport().getpeername()[0]] += 1
            return start(channel, *args, **kwargs)

        return wrapper

    for name in ("exec_command", "invoke_shell", "invoke_subsystem"):
        setattr(Channel, name, counted(getattr(Channel, name)))


def main() -> None:
    """Runs pyinfra; its exit status is kept."""
    counts: Counter[str] = Counter()
    count_channels(counts)
    target = Path(sys.argv.pop(1))
    try:
        pyinfra()
    finally:
        target.write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
