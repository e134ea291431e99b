"""Names of images as recipes and docker write them, and the docker that has them."""

from __future__ import annotations

DOCKER_SOCKET = "/var/run/docker.sock"


def repository(reference: str) -> str:
    """Gives a reference without its tag and its digest."""
    folder, slash, name = reference.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}"
