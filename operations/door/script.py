"""The script that root runs on a host, so that a login's sudo is rigbook's door alone.

It brings the program, the door that starts it, and the sudoers file, each checked and renamed into
place. `python -m operations.door LOGIN` prints it.
"""

from __future__ import annotations

import base64
import re
import zlib

from facts.rignode import pack
from schema.render import node_program

DOOR = "/usr/local/sbin/rigbook-door"
SUDOERS = "/etc/sudoers.d/rigbook-door"
# sudo's env_reset may be off, and its env_keep wide
_DOOR = """\
#!/usr/bin/python3 -ISB
# Managed by rigbook: make sudoers wrote it (docs/reference/sudo.md).
import os, sys
kept = {{k: v for k, v in os.environ.items() if k == "LANG" or k.startswith("LC_")}}
os.environ.clear()
os.environ.update(kept, HOME="/root",
                  PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
PROGRAM = "{program}"
sys.path.insert(0, PROGRAM)
from node.cli.door import main
sys.exit(main(sys.argv[1:], PROGRAM))
"""
_SUDOERS = """\
# Managed by rigbook: make sudoers wrote it (docs/reference/sudo.md).
{login} ALL=(root) NOPASSWD: {door}
"""
_SCRIPT = '''\
#!/usr/bin/python3 -I
"""rigbook: {login} may run rigbook's program as root, and no shell. Run it as root on the host."""
import base64, os, pwd, subprocess, sys, zlib
LOGIN = "{login}"
FILES = [
{files}
]
def fail(said):
    sys.exit("rigbook-door: " + said)
def put(path, mode, raw):
    folder, name = os.path.split(path)
    os.makedirs(folder, 0o755, exist_ok=True)
    # sudo passes over a name with a dot
    temp = os.path.join(folder, "." + name + ".tmp")
    if os.path.lexists(temp):
        os.unlink(temp)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(raw)
        file.flush()
        os.fchmod(fd, mode)
        os.fsync(fd)
    if folder == "/etc/sudoers.d" and subprocess.run(["visudo", "-cqf", temp]).returncode:
        os.unlink(temp)
        fail("visudo does not accept " + path + ": it was not written")
    os.rename(temp, path)
    print("wrote " + path)
if os.geteuid() != 0:
    fail("run it as root: sudo python3 " + sys.argv[0])
try:
    pwd.getpwnam(LOGIN)
except KeyError:
    fail("there is no login " + LOGIN + " on this host")
for path, mode, word in FILES:
    put(path, mode, zlib.decompress(base64.b64decode(word)))
if os.path.islink("{link}") or not os.path.lexists("{link}"):
    os.symlink("{program}", "{link}.tmp")
    os.rename("{link}.tmp", "{link}")
said = subprocess.run(["sudo", "-n", "-l", "-U", LOGIN], capture_output=True, text=True).stdout
more = [line.strip() for line in said.splitlines()
        if line.startswith("    (") and not line.strip().endswith("{door}")]
print("sudo still lets " + LOGIN + " run this besides, by another sudoers file or a group; take it "
      "away: " + "; ".join(more) if more else LOGIN + " may run {door} as root, and nothing else")
'''


def door() -> str:
    """The program that sudo starts: it names the version of the program that it runs."""
    return _DOOR.format(program=node_program.path())


def sudoers(login: str) -> str:
    """The sudoers file. ValueError for what is no login's name."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", login):
        raise ValueError(f"{login[:40]!r} is not a login's name")
    return _SUDOERS.format(login=login, door=DOOR)


def script(login: str) -> str:
    """The whole script, the program in it. ValueError for what is no login's name."""
    files = (
        (node_program.path(), 0o755, pack.zipapp_bytes()),
        (DOOR, 0o755, door().encode()),
        (SUDOERS, 0o440, sudoers(login).encode()),
    )
    rows = "\n".join(f'    ("{path}", 0o{mode:o}, "{_word(raw)}"),' for path, mode, raw in files)
    return _SCRIPT.format(
        login=login, files=rows, door=DOOR, link=node_program.LINK, program=node_program.path()
    )


def _word(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")
