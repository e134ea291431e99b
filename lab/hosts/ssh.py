"""ssh to the lab's hosts, and waiting until a host is ready."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from lab.core import console
from lab.core.settings import SSH_USER, LabError, LabHost, LabSettings
from lab.hosts import state as hosts_state

READY_SECONDS = 120
BOOT_LOOK_S = 15


def ssh_argv(settings: LabSettings, host: LabHost) -> list[str]:
    """The ssh command line to a host, without the remote command."""
    return [
        "ssh",
        "-F/dev/null",
        f"-i{settings.ssh_key}",
        "-oIdentitiesOnly=yes",
        "-oBatchMode=yes",
        "-oStrictHostKeyChecking=yes",
        f"-oUserKnownHostsFile={settings.known_hosts}",
        "-oGlobalKnownHostsFile=/dev/null",
        "-oConnectTimeout=5",
        "-oServerAliveInterval=15",
        f"{SSH_USER}@{host.address}",
    ]


def sudo(
    settings: LabSettings, host: LabHost, command: str, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a shell command as root on a host; the result is the caller's to judge."""
    argv = [*ssh_argv(settings, host), "sudo", "-n", "sh"]
    try:
        return subprocess.run(argv, input=command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {timeout:.0f} s")


def wait_ready(settings: LabSettings, host: LabHost) -> None:
    """Wait until ssh answers, systemd has booted and docker answers; LabError in plain words."""
    began = time.monotonic()
    step, seen = "ssh", ""
    while True:
        if not hosts_state.read(settings, host).running():
            log = settings.host_dir(host) / "console.log"
            raise LabError(f"{host.name}: its supervisor ended; see {log}")
        step, seen = _look(settings, host)
        if step == "ready":
            console.say(f"{host.name}: {seen} after {time.monotonic() - began:.1f} s")
            return
        if time.monotonic() - began > READY_SECONDS:
            raise LabError(f"{host.name}: no {step} within {READY_SECONDS} s: {seen}")
        time.sleep(0.3)


def _look(settings: LabSettings, host: LabHost) -> tuple[str, str]:
    """What is still missing, and how it looks.

    An engine's start is not waited for: it lasts until its first answer, and belongs to the boot
    of a host that serves.
    """
    docker_says = "echo 0" if host.is_tower else "docker info --format '{{.ServerVersion}}' 2>&1"
    script = (
        f"timeout {BOOT_LOOK_S} systemctl is-system-running --wait >/dev/null; "
        "echo $(systemctl is-system-running); "
        "echo $(systemctl list-jobs --no-legend | awk '$4 == \"running\" {print $2}'); "
        f"{docker_says}; "
        "systemctl list-units --failed --plain --no-legend | cut -d' ' -f1"
    )
    done = sudo(settings, host, script, timeout=READY_SECONDS)
    if done.returncode != 0:
        return "ssh", done.stderr.strip()
    state, jobs, docker, *failed = done.stdout.split("\n")
    starts_only_ours = jobs and all(job.startswith("rigbook-") for job in jobs.split())
    if state not in ("running", "degraded") and not (state == "starting" and starts_only_ours):
        return "systemd", f"{state} {jobs}".strip()
    if not docker[:1].isdigit():
        return "docker", docker
    names = " ".join(name for name in failed if name)
    has = "no docker" if host.is_tower else f"docker {docker}"
    return "ready", f"systemd {state}, {has}" + (f", failed: {names}" if names else "")


def interactive(settings: LabSettings, host: LabHost, command: Sequence[str]) -> int:
    """ssh in the foreground, with the terminal; its exit code comes back."""
    return subprocess.call([*ssh_argv(settings, host), *command])
