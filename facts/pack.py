"""Make the program portable: a zipapp to install, or one shell command that writes nothing.

Runs on the operator's machine; it is not part of what is sent.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from node import verbs as node_verbs
from node.core.errors import Json
from node.docker import api
from node.rules.text import bare
from schema import render_unit
from schema.core import revealed
from schema.render_unit import PROGRAM_LIBRARY, PROGRAM_LINK

# the kernel's MAX_ARG_STRLEN is 128 KiB, and pyinfra's quoting of the command adds to it
MAX_COMMAND = 100 * 1024
_IMPORT = re.compile(
    r"^ *(?:import (node[\w.]*)|from (node[\w.]*) import (\([^)]*\)|.*))", re.MULTILINE
)
# -I: as root it must not read a user's site-packages or PYTHONPATH
_SHEBANG = b"#!/usr/bin/env -S python3 -I\n"
# Ctrl-C ends it as TERM does, also while it loads: nothing has to end in order yet.
_START = """\
import _signal
if _signal.getsignal(2) is _signal.default_int_handler:
    _signal.signal(2, _signal.SIG_DFL)
import sys
sys.dont_write_bytecode = True
from node.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

# -S: no site-packages, whose .pth files every start of Python would read.
_PYTHON = "python3 -I -S -B -c"
# Reads two words from stdin, base64 of zlib of JSON: the arguments and the modules. What it imports
# is all there before it or is cheap: importlib.abc and base64 cost every snapshot 15 ms.
_RUN = """\
import sys,binascii,zlib,json
from importlib.machinery import ModuleSpec as S
A,F=[json.loads(zlib.decompress(binascii.a2b_base64(w))) for w in sys.stdin.read().split(".")]
class R:
 def find_spec(s,n,path=None,target=None):
  return S(n,s,origin="rignode:"+n,is_package=F[n][0]) if n in F else None
 def create_module(s,spec):return None
 def exec_module(s,m):
  n=m.__name__
  exec(compile(F[n][1],"<rignode:%s>"%n,"exec",dont_inherit=True),m.__dict__)
sys.meta_path.insert(0,R())
from node.__main__ import main
sys.exit(main(A))
"""
# Reads two base64 words of zlib: what is asked, as JSON, and the zipapp. The request
# becomes the verb's own stdin, from memory; so does the program where it cannot be written
# (no room, read-only) and the verb may go without (M).
_INSTALL = """\
import sys,base64,zlib,json,os,errno
H,Z=(zlib.decompress(base64.b64decode(w)) for w in sys.stdin.read().split(":"))
A,R,D,L,N,M=json.loads(H)
P=os.path.join(D,N)
def sync(d):
 f=os.open(d,os.O_RDONLY);os.fsync(f);os.close(f)
def same():
 try:
  s=os.lstat(P)
  return s.st_mode==0o100755 and s.st_uid==os.geteuid() and open(P,"rb").read()==Z
 except OSError:return False
try:
 if not same():
  os.makedirs(D,0o755,exist_ok=True)
  t=P+".%d.tmp"%os.getpid()
  try:
   f=os.open(t,os.O_WRONLY|os.O_CREAT|os.O_EXCL|os.O_NOFOLLOW,0o600)
   with os.fdopen(f,"wb") as h:
    h.write(Z);h.flush();os.fchmod(f,0o755);os.fsync(f)
   os.rename(t,P)
  finally:
   if os.path.lexists(t):os.unlink(t)
  sync(D)
 if not os.path.islink(L) or os.readlink(L)!=P:
  if os.path.lexists(L) and not os.path.islink(L):raise OSError(17,"not our link",L)
  t=L+".%d.tmp"%os.getpid()
  os.symlink(P,t);os.rename(t,L);sync(os.path.dirname(L))
except OSError as e:
 room=e.errno in(errno.ENOSPC,errno.EDQUOT,errno.EROFS)
 if not(M and room):
  w="cannot install rignode: %s: %s"%(e.filename or D,e.strerror)
  y="df -h %s; df -i %s; make room, then run it again"%(D,D)if room else"run as root"
  print(json.dumps({"ok":False,"error":w,"code":"install","remedy":y}))
  sys.exit(1)
 f=os.memfd_create(N,0)
 with os.fdopen(f,"wb",closefd=False) as h:h.write(Z)
 P="/proc/self/fd/%d"%f
m=os.memfd_create("request",0)
os.write(m,R.encode());os.lseek(m,0,0);os.dup2(m,0)
os.execv(sys.executable,[sys.executable,"-I","-B",P]+A)
"""


@functools.cache
def zipapp_bytes() -> bytes:
    """Gives the zipapp; the same sources give the same bytes.

    Stored, not deflated: the bytes then do not depend on this machine's zlib.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, raw in {"__main__.py": _START.encode(), **render_unit.whole_program()}.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, raw)
    return _SHEBANG + buffer.getvalue()


def _word(value: object) -> str:
    """Gives a JSON value as one base64 word: letters, digits, '+', '/', '='."""
    raw = json.dumps(value, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def _words(verb: str) -> list[str]:
    """Gives the program's arguments. Raises ValueError for a verb that is not plain words."""
    words = verb.split()
    if not words or not all(word.isalpha() and word.isascii() for word in words):
        raise ValueError(f"not a verb: {verb!r}")
    return words


def _quoted(program: str) -> str:
    """Gives Python source as a double-quoted shell word."""
    for char in ("\\", '"', "$", "`"):
        program = program.replace(char, "\\" + char)
    return f'"{program}"'


@functools.cache
def _files() -> dict[str, str]:
    """Gives every module's name with its file's."""
    return {
        name[: -len(".py")].replace("/", ".").removesuffix(".__init__"): name
        for name in render_unit.program_files()
    }


@functools.cache
def _imports(module: str) -> frozenset[str]:
    """Gives the modules of the program that one imports, anywhere in it, and their packages."""
    named: set[str] = set()
    # by pattern, not by ast: every run of a deploy pays for it
    # (tests/unit/facts/rignode/test_pack.py compares)
    for plain, package, names in _IMPORT.findall(
        render_unit.program_file(_files()[module]).decode()
    ):
        parts = [part.split()[0] for part in names.strip("()").split(",") if part.strip()]
        named |= {plain, package, *(f"{package}.{part}" for part in parts)}
    named |= {name.rpartition(".")[0] for name in named}
    return frozenset(name for name in named if name in _files())


@functools.cache
def needs(*verbs: str) -> tuple[str, ...]:
    """Gives the modules that the verbs need, sorted: the host compiles no others."""
    modules = {node_verbs.module_of(verb) for verb in verbs}
    wanted = {"node", "node.__main__", *modules, *(name.rpartition(".")[0] for name in modules)}
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        found.add(name)
        wanted |= _imports(name) - found
    return tuple(sorted(found))


@functools.cache
def _program(*verbs: str) -> str:
    """Gives the modules that the verbs need as a word, each whether it is a package and its source
    without docstrings: packed once, however many hosts there are.
    """
    files = {name: _files()[name] for name in needs(*verbs)}
    return _word(
        {
            name: (file.endswith("/__init__.py"), bare(render_unit.program_file(file).decode()))
            for name, file in files.items()
        }
    )


def _asked(verb: str, request: str) -> str:
    """Gives a verb's arguments as a word."""
    return _word([*_words(verb), request])


def inline_command(verb: str, request: dict[str, object]) -> str:
    """Gives a POSIX shell line that runs a verb on a host without writing any file there.

    No Secret may be in the request (TypeError): every user reads it in the command line.
    It is under MAX_COMMAND bytes; raises ValueError when the request makes it longer. printf is a
    builtin of dash and bash, so no argument limit and no temp file (bash keeps large
    here-documents in a file under /tmp). No single quote is in it: callers wrap it in two sh -c.
    """
    packed = f"{_asked(verb, json.dumps(request))}.{_program(verb)}"
    line = f"printf %s {packed} | {_PYTHON} {_quoted(_RUN)}"
    if len(line) > MAX_COMMAND:
        raise ValueError(f"the command is {len(line)} bytes long, {MAX_COMMAND} are allowed")
    return line


class Call(NamedTuple):
    """A shell line and what it reads from its stdin."""

    line: str
    stdin: str


class Part(NamedTuple):
    """One of several verbs, its request, and how many seconds it may take."""

    verb: str
    request: dict[str, object]
    seconds: int


def stdin_call(verb: str, request: dict[str, object]) -> Call:
    """Gives what runs a verb without writing any file on the host, with a request of any length:
    program and request go through stdin. For what only reads.
    """
    return _by_stdin(verb, request, verb)


def several_call(parts: Sequence[Part]) -> Call:
    """Gives what runs several reading verbs in one process, as `stdin_call` does one."""
    rows = [part._asdict() for part in parts]
    verbs = sorted(part.verb for part in parts)
    return _by_stdin(node_verbs.SEVERAL, {"parts": rows}, node_verbs.SEVERAL, *verbs)


def _by_stdin(verb: str, request: dict[str, object], *needed: str) -> Call:
    asked = _asked(verb, json.dumps(request, default=revealed))
    return Call(f"{_PYTHON} {_quoted(_RUN)}", f"{asked}.{_program(*needed)}")


def install_call(
    verb: str, request: dict[str, object], library: str = PROGRAM_LIBRARY, link: str = PROGRAM_LINK
) -> Call:
    """Gives what installs the zipapp when it is not there, then runs a verb of it; what goes back
    or makes room (verb_table.FROM_MEMORY) runs without, where there is no room for it.

    Program and request go through stdin: no limit of length, and no request in a command line,
    which every user of the host can read.
    """
    name = f"rignode-{render_unit.program_version()}.pyz"
    asked = json.dumps(request, default=revealed)
    in_memory = verb in node_verbs.FROM_MEMORY
    header = [_words(verb), asked, library, link, name, in_memory]
    line = f"python3 -I -B -c {_quoted(_INSTALL)}"
    return Call(line, f"{_word(header)}:{_zipapp_word()}")


@functools.cache
def _zipapp_word() -> str:
    """Gives the zipapp as a word: packed once a run, whatever is asked how often."""
    return base64.b64encode(zlib.compress(zipapp_bytes(), 6)).decode("ascii")


def config_sha256(config: Json) -> str:
    """Gives what a node's snapshot says of an image whose config file is `config`."""
    return api.config_sha256(
        config.get("config") or {}, config.get("architecture", ""), config.get("os", "")
    )
