"""``python -m lab VERB``: the rehearsal rig's command line."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping

from lab import core, engine, lifecycle
from lab import host as lab_host
from lab.core import DEFAULT_HOSTS, PLACES, TWIN, LabError, LabSettings, load_settings

REHEARSE, INCIDENT, CHECK = TWINS = ("rehearse", "incident", "incident-check")


def parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    top = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make and boot the hosts, load the engine")
    up.add_argument("--hosts", type=int, metavar="N", help=f"default: {DEFAULT_HOSTS}")
    up.add_argument("--tower", action="store_true", help="a host with the engine in a venv, too")
    up.add_argument(
        "--containerd",
        action="store_true",
        help="docker with the containerd image store from the second host on; no engine's image",
    )
    up.add_argument("--no-engine", action="store_true", help="without the engine's image")
    up.add_argument("--image-on-one", action="store_true", help="the image in the first host only")
    down = verbs.add_parser("down", help="stop and remove everything")
    down.add_argument(
        "--all", action="store_true", help="also the tests' lab, unless its tests still run"
    )
    down.add_argument("--purge", action="store_true", help="remove the caches as well")
    verbs.add_parser("status", help="hosts, addresses, what is cached")
    verbs.add_parser("engine", help="build the engine's image and model, load them into the hosts")
    for name, text in (
        ("reboot", "reboot a host and wait for it"),
        ("stop", "power a host off"),
        ("start", "start a host that was powered off"),
    ):
        verbs.add_parser(name, help=text).add_argument("name")
    ssh = verbs.add_parser("ssh", help="a shell, or a command, on a host")
    ssh.add_argument("name")
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    twin = verbs.add_parser(REHEARSE, help="make a twin of a rig: its names, users, paths")
    twin.add_argument("inventory", help="such as inventory/spark.py")
    for name, text in (
        (INCIDENT, "break the twin as docs/incidents.md tells"),
        (CHECK, "whether it is mended, and after how many seconds"),
    ):
        verbs.add_parser(name, help=text).add_argument("code", help="such as C13")
    fabric = verbs.add_parser("fabric", help="unplug or plug the fabric link")
    fabric.add_argument("state", choices=("down", "up"))
    return top


@contextlib.contextmanager
def alone(settings: LabSettings) -> Iterator[None]:
    """One changing command at a time. The lock is on the home's parent: ``down`` leaves no file."""
    settings.home.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(settings.home.parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            core.say_console("another lab command runs: waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def dispatch(arguments: argparse.Namespace) -> int:
    """Do what the verb says; the exit code comes back."""
    verb = arguments.verb
    settings = load_settings(of_twins(os.environ) if verb in TWINS else os.environ)
    if verb == "status":
        lifecycle.show_status(settings)
        return 0
    if os.geteuid() != 0:
        raise LabError(f"'{verb}' needs root (namespaces, mounts, keys): run it with sudo")
    if verb not in ("up", "down", REHEARSE) and not settings.state_file.exists():
        raise LabError("there is no lab: 'up' first")
    if verb == "ssh":
        return lab_host.interactive(settings, settings.host(arguments.name), arguments.command)
    # Twins need pydantic; lab-down and lab-status are to work without .venv.
    if verb == INCIDENT:
        from lab import rehearsal

        rehearsal.deal_incident(settings, arguments.code)
        return 0
    if verb == CHECK:
        from lab import rehearsal

        return rehearsal.check_incident(settings, arguments.code)
    with alone(settings):
        change(settings, arguments)
    return 0


def change(settings: LabSettings, arguments: argparse.Namespace) -> None:
    """Do what a changing verb says."""
    verb = arguments.verb
    if verb == "up":
        tower = engine.layer if arguments.tower else None
        lifecycle.up(settings, arguments.hosts, tower, arguments.containerd)
        made = settings.hosts()
        # the engine's image has another id in a containerd store: no test serves there
        without = arguments.no_engine or any(host.containerd for host in made)
        if not without and any(not host.is_tower for host in made):
            engine.provide_image(settings, arguments.image_on_one)
        lifecycle.show_status(settings)
    elif verb == REHEARSE:
        from lab import rehearsal

        rehearsal.make_rehearse(settings, arguments.inventory)
    elif verb == "engine":
        engine.provide_image(settings)
    elif verb == "down":
        if arguments.all:
            down_others(settings)
        lifecycle.down(settings)
        if arguments.purge:
            purge(settings)
    elif verb == "stop":
        lifecycle.stop(settings, settings.host(arguments.name))
    elif verb == "start":
        host = settings.host(arguments.name)
        lifecycle.start(settings, host)
        lab_host.wait_ready(settings, host)
        lifecycle.wait_fabric(settings)
    elif verb == "reboot":
        lifecycle.reboot(settings, settings.host(arguments.name))
    elif arguments.state == "down":
        lab_host.unplug_fabric(settings)
    else:
        settings.fabric_down_flag.unlink(missing_ok=True)
        lifecycle.wait_fabric(settings)


def of_twins(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with the twins' lab where none is named."""
    return {**environ, "RIGBOOK_LAB": environ.get("RIGBOOK_LAB") or TWIN.name}


def others(settings: LabSettings) -> list[LabSettings]:
    """The labs beside this one that have a folder on this machine."""
    known = (
        load_settings({**os.environ, "RIGBOOK_LAB": name, "RIGBOOK_LAB_HOME": ""})
        for name in PLACES
    )
    return [lab for lab in known if lab.place != settings.place and lab.home.exists()]


def down_others(settings: LabSettings) -> None:
    """Take down the other labs that nobody uses any more, such as one whose tests were killed."""
    for lab in others(settings):
        user = lab_host.owner(lab)
        if user:
            core.say_console(f"the {lab.place.name} lab stays: process {user.pid} uses it")
        else:
            lifecycle.down(lab)


def purge(settings: LabSettings) -> None:
    """Remove the cache; LabError while another lab's hosts stand on it."""
    if others(settings):
        raise LabError("the cache stays: another lab's hosts stand on it; 'down --all' first")
    with core.phase("remove the cache"):
        core.remove_tree(settings.cache)


def main() -> int:
    """Entry point: one line on stderr and exit 1 for what went wrong."""
    began = time.monotonic()
    arguments = parser().parse_args()
    try:
        code = dispatch(arguments)
    except LabError as error:
        print(f"lab: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader of a pipe (head, grep -q) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("lab: interrupted; 'python -m lab down' removes what was begun", file=sys.stderr)
        return 130
    if arguments.verb not in ("ssh", "status"):
        core.say_console(f"{arguments.verb}: {time.monotonic() - began:.1f} s in all")
    return code


if __name__ == "__main__":
    sys.exit(main())
