"""Make the program portable: a zipapp to install, or one shell command that writes nothing.

Runs on the operator's machine; it is not part of what is sent.
"""

from __future__ import annotations

import ast
import base64
import bz2
import functools
import hashlib
import io
import json
import tokenize
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = "/usr/local/lib/rigbook"
LINK = "/usr/local/bin/rignode"
# the kernel's MAX_ARG_STRLEN is 128 KiB, and pyinfra's quoting of the command adds to it
MAX_COMMAND = 100 * 1024
_SHEBANG = b"#!/usr/bin/env python3\n"
_START = """\
import sys
sys.dont_write_bytecode = True
from node.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

# Both read base64 from stdin: bz2 (a quarter smaller than zlib here) of a JSON list; for _INSTALL
# the zipapp follows its line.
_RUN = """\
import sys,base64,bz2,json
from importlib.abc import MetaPathFinder as M,InspectLoader as L
from importlib.machinery import ModuleSpec as S
A,F=json.loads(bz2.decompress(base64.b64decode(sys.stdin.read())))
class R(M,L):
 def find_spec(s,n,path=None,target=None):
  p=n in F and F[n][0]
  return S(n,s,origin="rignode:"+n,is_package=p) if n in F else None
 def is_package(s,n):return F[n][0]
 def get_source(s,n):return F[n][1]
sys.meta_path.insert(0,R())
from node.__main__ import main
sys.exit(main(A))
"""
_INSTALL = """\
import sys,base64,bz2,json,os
H,_,Z=bz2.decompress(base64.b64decode(sys.stdin.read())).partition(b"\\n")
A,D,L,N=json.loads(H)
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
 w="cannot install rignode: %s: %s"%(e.filename,e.strerror)
 print(json.dumps({"ok":False,"error":w,"code":"install","remedy":"run as root"}))
 sys.exit(1)
if A[-1] is None:
 A.pop();os.dup2(3,0)
os.execv(sys.executable,[sys.executable,"-I","-B",P]+A)
"""


def lean(raw: bytes) -> bytes:
    """Gives a module without its comment lines, blank lines and docstrings: a fifth less to send.

    They are for readers of the project, and a command line has a limit.
    """
    text = raw.decode()
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        first = node.body[0] if node.body else None
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str) and first.end_lineno is not None:
            lines[first.lineno - 1] = " " * first.col_offset + '""\n'
            for number in range(first.lineno, first.end_lineno):
                lines[number] = ""
    # By token: a line of a string that starts with `#`, or is empty, is not a comment.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        whole = token.line[: token.start[1]].strip() == ""
        if whole and token.type in (tokenize.COMMENT, tokenize.NL):
            lines[token.start[0] - 1] = ""
    return "".join(lines).encode()


@functools.lru_cache(maxsize=None)
def sources() -> dict[str, bytes]:
    """Gives the program's files, lean, `node/...` to bytes, sorted; this one is not among them."""
    found = {
        f"node/{path.relative_to(HERE).as_posix()}": lean(path.read_bytes())
        for path in HERE.rglob("*.py")
        if path.name != "pack.py"
    }
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=None)
def version() -> str:
    """Gives the first 12 hex digits of the sha256 over the program's files."""
    digest = hashlib.sha256()
    for name, raw in sources().items():
        digest.update(f"{name}\0{len(raw)}\0".encode())
        digest.update(raw)
    return digest.hexdigest()[:12]


@functools.lru_cache(maxsize=None)
def zipapp_bytes() -> bytes:
    """Gives the zipapp; the same sources give the same bytes.

    Stored, not deflated: the bytes then do not depend on this machine's zlib.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, raw in {"__main__.py": _START.encode(), **sources()}.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, raw)
    return _SHEBANG + buffer.getvalue()


def _packed(value: object, payload: bytes = b"") -> str:
    """Gives a JSON line and the payload as one base64 word: letters, digits, '+', '/', '='."""
    raw = json.dumps(value, separators=(",", ":")).encode() + b"\n" + payload
    return base64.b64encode(bz2.compress(raw, 9)).decode("ascii")


def _argv(verb: str, request: dict[str, object] | None) -> list[str | None]:
    """Gives the program's arguments. Raises ValueError for a verb that is not plain words."""
    words = verb.split()
    if not words or not all(word.isalpha() and word.isascii() for word in words):
        raise ValueError(f"not a verb: {verb!r}")
    return [*words, None if request is None else json.dumps(request)]


def _command(before: str, packed: str, program: str) -> str:
    """Gives the shell line. Raises ValueError when it is too long for one argument.

    printf is a builtin of dash and bash, so no argument limit and no temp file (bash keeps large
    here-documents in a file under /tmp). No single quote is in it: callers wrap it in two sh -c.
    """
    line = f'{before}printf %s {packed} | python3 -I -B -c "{program}"'
    if len(line) > MAX_COMMAND:
        raise ValueError(f"the command is {len(line)} bytes long, {MAX_COMMAND} are allowed")
    return line


def _quoted(program: str) -> str:
    """Gives Python source for a double-quoted shell word."""
    for char in ("\\", '"', "$", "`"):
        program = program.replace(char, "\\" + char)
    return program


def inline_command(verb: str, request: dict[str, object]) -> str:
    """Gives a POSIX shell line that runs a verb on a host without writing any file there.

    It is under MAX_COMMAND bytes; raises ValueError when the request makes it longer.
    """
    modules = {}
    for name, raw in sources().items():
        stem = name[: -len(".py")].replace("/", ".")
        is_package = stem.endswith(".__init__")
        modules[stem[: -len(".__init__")] if is_package else stem] = (is_package, raw.decode())
    return _command("", _packed([_argv(verb, request), modules]), _quoted(_RUN))


def install_command(
    verb: str,
    request: dict[str, object] | None,
    library: str = LIBRARY,
    link: str = LINK,
) -> str:
    """Gives a shell line that installs the zipapp when it is not there, then runs a verb of it.

    With `request` None the verb reads its JSON from the command's stdin: the way for secrets,
    since a command line can be read by every user of the host.
    """
    name = f"rignode-{version()}.pyz"
    packed = _packed([_argv(verb, request), library, link, name], zipapp_bytes())
    return _command("exec 3<&0; ", packed, _quoted(_INSTALL))
