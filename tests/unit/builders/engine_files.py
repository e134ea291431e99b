"""Reading rendered files the way bash and systemd read them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from schema.desired.plan import Document

# Stand-in for vllm: writes its own arguments, each ended by NUL, to stdout.
VLLM_DOUBLE = '#!/bin/sh\nprintf \'%s\\0\' "$0" "$@"\n'


def argv_of_script(script: Document, folder: Path) -> list[str]:
    """What `vllm` gets when bash runs the launch script (a double records its arguments)."""
    double = folder / "bin" / "vllm"
    double.parent.mkdir(exist_ok=True)
    double.write_text(VLLM_DOUBLE)
    double.chmod(0o755)
    path = folder / "serve.sh"
    path.write_text(script.content)
    done = subprocess.run(
        ["/bin/bash", str(path)],
        env={"PATH": f"{double.parent}:/usr/bin:/bin", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        timeout=10,
        check=True,
    )
    assert done.stderr == b""
    return ["vllm", *done.stdout.decode().split("\0")[1:-1]]


def unit_lines(unit: Document) -> list[tuple[str, str]]:
    """A unit's (key, value) pairs, continuation lines joined and comments dropped."""
    text = re.sub(r"\\\n\s*", "", unit.content)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def exec_start(unit: Document) -> list[str]:
    """ExecStart's arguments as systemd.service(5) reads them: quotes, then `%%` and `$$`."""
    (command,) = [value for key, value in unit_lines(unit) if key == "ExecStart"]
    arguments = shlex.split(command)
    for argument in arguments:
        assert not re.search(r"(?<![%])(%%)*%(?!%)", argument), f"specifier in {argument!r}"
        assert not re.search(r"(?<![$])(\$\$)*\$(?!\$)", argument), f"variable in {argument!r}"
    return [a.replace("%%", "%").replace("$$", "$") for a in arguments]
