"""What makes one lab host itself: name, machine-id, keys, addresses, the stand-in's state."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from lab.core import console
from lab.core.settings import (
    FABRIC_DEVICE,
    FABRIC_MTU,
    FABRIC_PREFIX,
    LAN_PREFIX,
    MODEL_PATH,
    SSH_USER,
    LabHost,
    LabSettings,
)

# the seed's cards and driver
TOWER_GPU = {
    "name": "NVIDIA GeForce RTX 5060 Ti", "compute_cap": "12.0", "memory_mib": 16311,
    "reserved_mib": 0,
}  # fmt: skip
TOWER_DRIVER = "580.126.09"
STAND_IN = Path(__file__).parents[1] / "files" / "nvidia-smi"


def make_keys(settings: LabSettings) -> None:
    """Make the login key and the hosts' keys once, and known_hosts from them."""
    folder = settings.ssh_key.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = []
    for name in ["id_ed25519", *(f"{host.name}_host_key" for host in settings.hosts())]:
        if not (folder / name).exists():
            console.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"rigbook lab {name}",
                         "-f", folder / name])  # fmt: skip
    for host in settings.hosts():
        key = " ".join((folder / f"{host.name}_host_key.pub").read_text().split()[:2])
        lines.append(f"{host.name},{host.address} {key}\n")
    settings.known_hosts.write_text("".join(lines))


def machine_id(settings: LabSettings, host: LabHost) -> str:
    """A machine-id of its own for each host, the same for the same lab and name."""
    return hashlib.sha256(f"{settings.home}/{host.name}".encode()).hexdigest()[:32]


def gpu_state(host: LabHost) -> dict[str, object]:
    """The stand-in's state on a fresh host: one GB10, as on a DGX Spark; on a tower two cards."""
    if host.is_tower:
        cards = [
            {**TOWER_GPU, "uuid": _uuid(f"{host.name} {n}"), "bus_id": f"00000000:0{n + 1}:00.0"}
            for n in range(2)
        ]
        return {"kind": "discrete", "driver": TOWER_DRIVER, "gpus": cards}
    uuid = _uuid(host.name)
    return {"kind": "gb10", "driver": "580.95.05", "gpus": [{"name": "NVIDIA GB10", "uuid": uuid}]}


def _uuid(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def network_file(device: str, address: str, mtu: int | None) -> str:
    """A systemd-networkd file that gives a device one fixed address."""
    link = f"[Link]\nMTUBytes={mtu}\n\n" if mtu else ""
    return (
        f"[Match]\nName={device}\n\n{link}"
        f"[Network]\nAddress={address}\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    )


def write_files(settings: LabSettings, host: LabHost) -> None:
    """Write the host's own files into its mounted root; later starts renew only the stand-in."""
    root = settings.host_dir(host) / "root"
    write(root / "usr/bin/nvidia-smi", STAND_IN.read_text(), 0o755)
    done = settings.host_dir(host) / "prepared"
    if done.exists():
        return
    hosts = [f"{other.address} {other.name}\n" for other in settings.hosts()]
    keys = settings.ssh_key.parent
    twin = settings.twin()
    files = {
        "etc/hostname": f"{host.name}\n",
        "etc/hosts": "127.0.0.1 localhost\n" + "".join(hosts),
        "etc/machine-id": machine_id(settings, host) + "\n",
        "etc/systemd/network/10-lan.network": network_file(
            "host0", f"{host.address}/{LAN_PREFIX}", None
        ),
        "etc/rigbook-lab/gpu.json": json.dumps(gpu_state(host), indent=1) + "\n",
    }
    if not host.is_tower:
        files["etc/systemd/network/10-fabric.network"] = network_file(
            FABRIC_DEVICE, f"{host.fabric_address}/{FABRIC_PREFIX}", FABRIC_MTU
        )
    for name, text in files.items():
        write(root / name, text, 0o644)
    for suffix, mode in (("", 0o600), (".pub", 0o644)):
        text = (keys / f"{host.name}_host_key{suffix}").read_text()
        write(root / f"etc/ssh/ssh_host_ed25519_key{suffix}", text, mode)
    if twin and twin.user != SSH_USER:
        add_user(root, twin.user)
        let_in(root, twin.user, keys)
    owner = let_in(root, SSH_USER, keys)
    models = root / MODEL_PATH.lstrip("/")
    models.mkdir(parents=True, exist_ok=True)
    for path in (models.parent, models):
        os.chown(path, owner.st_uid, owner.st_gid)
    done.touch()


def add_user(root: Path, name: str) -> None:
    """A login user beside the lab's own, with the same rights."""
    console.run(["chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", name])
    write(root / f"etc/sudoers.d/{name}", f"{name} ALL=(ALL) NOPASSWD: ALL\n", 0o440)


def let_in(root: Path, user: str, keys: Path) -> os.stat_result:
    """Lets the lab's key in as this user; gives who owns the home."""
    home = root / "home" / user
    authorized = home / ".ssh/authorized_keys"
    write(authorized, (keys / "id_ed25519.pub").read_text(), 0o600)
    authorized.parent.chmod(0o700)
    owner = home.stat()
    for path in (authorized, authorized.parent):
        os.chown(path, owner.st_uid, owner.st_gid)
    return owner


def write(path: Path, text: str, mode: int) -> None:
    """Write one file of the host anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    # made with its mode: a private key is never readable, not even for a moment
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
        stream.write(text)
