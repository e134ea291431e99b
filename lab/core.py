"""The lab's settings, console and cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# What the lab stands on: settings, the cache, the console, work on several hosts at once.

# Where the lab keeps its things and what its hosts are called. Reads only; changes nothing.

SSH_USER = "rig"
DEFAULT_HOSTS = 2
MAX_HOSTS = 9
# the first host that gets the containerd image store where it is asked for: the fabric's second end
CONTAINERD_HOST = 2
LAN_PREFIX = 24
FABRIC_DEVICE = "bond0"
FABRIC_MTU = 9000
FABRIC_PREFIX = 24
MODEL_PATH = "/srv/models/tiny"
CACHE_IN_HOST = "/srv/rigbook-cache"
ENGINE_VERSION = "0.32.0"
ENGINE_IMAGE = f"rigbook/vllm-cpu:{ENGINE_VERSION}"


class LabError(Exception):
    """A failure that one line explains; the command line prints it and exits 1."""


@dataclass(frozen=True)
class Place:
    """What tells one lab of this machine from another: folder, hosts' names, networks, links.

    `lan` and `fabric` are the first three numbers of a /24; `link` begins the names of the links
    on this machine (a link's name has at most 15 characters, one of its places `-fab1`).
    """

    name: str
    home: str
    host: str
    tower: str
    lan: str
    fabric: str
    link: str

    @property
    def bridge(self) -> str:
        """The LAN bridge on this machine."""
        return f"{self.link}-lan"

    @property
    def operator_address(self) -> str:
        """This machine's address on the LAN bridge."""
        return f"{self.lan}.254"

    @property
    def fabric_bridge(self) -> str:
        """The fabric's switch on this machine, where more than two hosts are joined."""
        return f"{self.link}-fab"

    @property
    def fabric_links(self) -> tuple[str, ...]:
        """The fabric's links on this machine, by host: a switch's ports, or a cable's ends until
        each is in its host."""
        return tuple(f"{self.link}-fab{number}" for number in range(1, MAX_HOSTS + 1))

    def hosts(self, count: int, containerd: bool = False) -> list[LabHost]:
        """`count` hosts, numbered from 1; `containerd`: from the second on with that store."""
        return [
            LabHost(self, number, containerd=containerd and number >= CONTAINERD_HOST)
            for number in range(1, count + 1)
        ]

    def towers(self, count: int) -> list[LabHost]:
        """`count` towers, numbered from 1."""
        return [LabHost(self, number, is_tower=True) for number in range(1, count + 1)]


# The user's lab, and beside it those that the tests and the scenario of molecule/default make.
USERS = Place("lab", "/var/lib/rigbook-lab", "lab", "tower", "10.88.0", "10.99.0", "rig")
TESTS = Place("tests", "/var/lib/rigbook-tests", "test", "testtower", "10.89.0", "10.98.0", "rigt")
MOLECULE = Place(
    "molecule", "/var/lib/rigbook-molecule", "mol", "moltower", "10.86.0", "10.96.0", "rigm"
)
# A rehearsal of another rig.
TWIN = Place("twin", "/var/lib/rigbook-twin", "twin", "twintower", "10.87.0", "10.97.0", "rigw")
PLACES = {place.name: place for place in (USERS, TESTS, MOLECULE, TWIN)}


@dataclass(frozen=True)
class Twin:
    """Whose twin a lab is: the rig's host names in rank order, its login user, and the inventory
    that was made for the twin (from the project's root).
    """

    names: tuple[str, ...]
    user: str
    inventory: str

    def as_json(self) -> dict[str, Any]:
        """For the lab's state file."""
        return {"names": [*self.names], "user": self.user, "inventory": self.inventory}


@dataclass(frozen=True)
class LabHost:
    """One rehearsal host: its lab, its number (from 1), name and addresses.

    A tower has its engine in a venv and no docker; its numbers count for themselves. A containerd
    host is of a later Debian, and its docker keeps images in the containerd store. `called` is the
    name of the host whose twin it is.
    """

    place: Place
    number: int
    is_tower: bool = False
    containerd: bool = False
    called: str = ""

    @property
    def name(self) -> str:
        """Host name, e.g. ``lab1`` or ``tower1``; a twin has the name of the rig's host."""
        return self.called or self.machine

    @property
    def machine(self) -> str:
        """What this machine calls it: its folder, its links and its cgroup follow from it."""
        return f"{self.place.tower if self.is_tower else self.place.host}{self.number}"

    @property
    def address(self) -> str:
        """LAN address, on the operator's bridge."""
        return f"{self.place.lan}.{(50 if self.is_tower else 10) + self.number}"

    @property
    def fabric_address(self) -> str:
        """Address on the fabric link; a tower has none."""
        return f"{self.place.fabric}.{self.number}"

    @property
    def has_fabric(self) -> bool:
        """Whether this host has a link of the fabric."""
        return not self.is_tower


@dataclass(frozen=True)
class LabSettings:
    """One lab; all of its paths follow from its home and its cache."""

    home: Path
    cache: Path
    place: Place = USERS

    @property
    def state_file(self) -> Path:
        """The lab's state file: present while a lab exists."""
        return self.home / "lab.json"

    @property
    def ssh_key(self) -> Path:
        """Private key of the login user."""
        return self.home / "ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all hosts, so that StrictHostKeyChecking=yes holds."""
        return self.home / "ssh" / "known_hosts"

    @property
    def images(self) -> Path:
        """Folder that every host sees read-only at CACHE_IN_HOST."""
        return self.cache / "images"

    @property
    def roots(self) -> Path:
        """Folder of the cached root trees."""
        return self.cache / "roots"

    @property
    def fabric_down_flag(self) -> Path:
        """While this file exists nobody plugs the fabric back in."""
        return self.home / "fabric.down"

    @property
    def owner_file(self) -> Path:
        """Names the process that the lab was made for, if it was made for one."""
        return self.home / "owner.json"

    def host_dir(self, host: LabHost) -> Path:
        """Folder of one host: overlay, docker's folder, state, console log."""
        return self.home / "hosts" / host.machine

    def hosts(self) -> list[LabHost]:
        """The hosts of the lab that exists, or those the default lab would have."""
        try:
            state = self._state()
            count, towers = int(state["hosts"]), int(state.get("towers", 0))
            containerd = bool(state.get("containerd", False))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            count, towers, containerd = DEFAULT_HOSTS, 0, False
        made = self.place.hosts(count, containerd) + self.place.towers(towers)
        twin = self.twin()
        if twin is None:
            return made
        return [replace(h, called=name) for h, name in zip(made, twin.names, strict=True)]

    def twin(self) -> Twin | None:
        """Whose twin this lab is; None where it is nobody's."""
        try:
            found = self._state()["twin"]
            return Twin(tuple(found["names"]), found["user"], found["inventory"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _state(self) -> Any:
        return json.loads(self.state_file.read_text())

    def fabric_hosts(self) -> list[LabHost]:
        """The hosts that the fabric joins."""
        return [host for host in self.hosts() if host.has_fabric]

    def host(self, name: str) -> LabHost:
        """The host of that name; LabError lists the names there are."""
        for host in self.hosts():
            if host.name == name:
                return host
        names = ", ".join(host.name for host in self.hosts())
        raise LabError(f"no host {name!r} in the lab; there are: {names}")


def load_settings(environ: Mapping[str, str] = os.environ) -> LabSettings:
    """The lab that RIGBOOK_LAB names: `lab` (the default), the user's, `tests`, `molecule` or
    `twin`.

    RIGBOOK_LAB_HOME and RIGBOOK_CACHE name other folders than the defaults.
    """
    name = environ.get("RIGBOOK_LAB") or USERS.name
    if name not in PLACES:
        raise LabError(f"RIGBOOK_LAB is {name!r}; there are: {', '.join(PLACES)}")
    place = PLACES[name]
    home = environ.get("RIGBOOK_LAB_HOME") or place.home
    cache = environ.get("RIGBOOK_CACHE") or str(Path("~/.cache/rigbook").expanduser())
    return LabSettings(Path(home).absolute(), Path(cache).absolute(), place)


# One piece of work for several hosts at once.


def in_parallel(hosts: Sequence[LabHost], work: Callable[[LabHost], object]) -> None:
    """Do `work(host)` for all hosts at once; the first error is raised after all have ended."""
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        for future in [pool.submit(work, host) for host in hosts]:
            future.result()


# What the lab prints, and how it runs other programs.


def say_console(text: str) -> None:
    """One progress line, at once."""
    print(f"lab: {text}", flush=True)


@contextmanager
def phase(name: str, estimate: str = "") -> Iterator[None]:
    """Announce a phase and print how long it took; ``estimate`` says what to expect."""
    say_console(f"{name} ..." + (f" (about {estimate})" if estimate else ""))
    began = time.monotonic()
    yield
    say_console(f"{name}: done in {time.monotonic() - began:.1f} s")


def run_console(
    argv: Sequence[str | Path],
    *,
    log: Path | None = None,
    timeout: float | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and give its stdout; LabError with its last lines if it fails.

    With ``log`` both streams go to that file (and "" comes back).
    """
    words = [str(word) for word in argv]
    try:
        with log.open("a") if log else contextlib.nullcontext(subprocess.PIPE) as stream:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL if log else None,
                stdout=stream,
                stderr=stream,
                text=True,
                timeout=timeout,
                cwd=cwd,
                env=env,
            )
        output = log.read_text(errors="replace") if log else done.stdout + done.stderr
    except FileNotFoundError as error:
        raise LabError(f"program not found: {words[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{words[0]} did not end within {timeout:.0f} s") from error
    if done.returncode != 0:
        tail = "\n  ".join(output.strip().splitlines()[-8:])
        raise LabError(f"{' '.join(words[:4])} failed with exit {done.returncode}:\n  {tail}")
    return "" if log else str(done.stdout)


def human(size: float) -> str:
    """Bytes as a short text: 605 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


# The cache: things built once, named by the hash of their recipe, complete or absent.


def recipe_hash(recipe: object) -> str:
    """The first 12 hex digits of the SHA-256 of a recipe, written as canonical JSON."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file: one builder at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> bool:
    """Build ``target`` under a temporary name and rename it; False if it was there.

    A temporary left by a killed builder is removed: the lock says nobody uses it.
    """
    if target.exists():
        return False
    with locked(target.parent / f".{target.name}.lock"):
        if target.exists():
            return False
        temporary = target.parent / f".{target.name}.part"
        remove_tree(temporary)
        try:
            build(temporary)
            temporary.rename(target)
        finally:
            remove_tree(temporary)
    return True


def remove_tree(path: Path) -> None:
    """Remove a file or a whole tree; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def disk_usage(path: Path) -> int:
    """Bytes on disk of a file or a tree, hard links counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            info = entry.lstat()
        except OSError:
            continue
        if (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total
