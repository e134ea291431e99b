"""Types of single values that people write: names, addresses, paths, and lists of them."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from schema.core.kernel_names import module_name, release_name
from schema.core.strings import (
    absolute_path,
    argument,
    device_name,
    hca_name,
    host_name,
    http_url,
    mac_address,
    plain_name,
)

# pyinfra's own keys: ConnectorData of pyinfra 3.10's ssh and fake connectors, and those of its
# global arguments that belong to a host: `_sudo`. pyinfra checks their values itself.
PYINFRA_KEYS = frozenset(
    [
        "ssh_hostname",
        "ssh_port",
        "ssh_user",
        "ssh_password",
        "ssh_key",
        "ssh_key_password",
        "ssh_allow_agent",
        "ssh_look_for_keys",
        "ssh_forward_agent",
        "ssh_config_file",
        "ssh_known_hosts_file",
        "ssh_strict_host_key_checking",
        "ssh_paramiko_connect_kwargs",
        "ssh_connect_retries",
        "ssh_connect_retry_min_delay",
        "ssh_connect_retry_max_delay",
        "ssh_file_transfer_protocol",
        "fake_responses",
        "fake_delay",
        "fake_delay_jitter",
        "_sudo",
    ]
)


def host_address(value: object) -> object:
    """The value, when it is one machine's IPv4 address; ValueError otherwise."""
    example = "an IPv4 address such as 192.168.1.11"
    if not isinstance(value, str | IPv4Address):
        # ipaddress would read a number as an address, too.
        raise ValueError(f"{value!r} is not text; allowed: {example}")
    try:
        address = IPv4Address(value)
    except ValueError:
        raise ValueError(f"is not an address; allowed: {example}") from None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise ValueError(f"is not one machine's address; allowed: {example}")
    return value


def listed(value: object) -> object:
    """`a,b` as the list that it means; a tuple, because that is what the field holds."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # pyinfra reads 41834 as a number
    if isinstance(value, float):  # and 7e12345 as one with an exponent: its digits are gone
        raise ValueError(
            "was read as a number; allowed: a list, such as --data 'KEY=[\"7e12345\"]'"
        )
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(value) if isinstance(value, list) else value


Address = Annotated[IPv4Address, BeforeValidator(host_address)]
Device = Annotated[str, AfterValidator(device_name)]
Name = Annotated[str, AfterValidator(plain_name)]
HostName = Annotated[str, AfterValidator(host_name)]
AbsolutePath = Annotated[str, AfterValidator(absolute_path)]
Mac = Annotated[str, AfterValidator(mac_address)]
Module = Annotated[str, AfterValidator(module_name)]
Release = Annotated[str, AfterValidator(release_name)]
Argument = Annotated[str, AfterValidator(argument)]
Url = Annotated[str, AfterValidator(http_url)]
Hca = Annotated[str, AfterValidator(hca_name)]
Devices = Annotated[tuple[Device, ...], BeforeValidator(listed)]
Hcas = Annotated[tuple[Hca, ...], BeforeValidator(listed)]
Names = Annotated[tuple[Name, ...], BeforeValidator(listed)]
Arguments = Annotated[tuple[Argument, ...], BeforeValidator(listed)]
Paths = Annotated[tuple[AbsolutePath, ...], BeforeValidator(listed)]


def as_text(value: object) -> object:
    """A number as the text that it was; pyinfra reads digits as a number."""
    return str(value) if type(value) is int else value


def as_version(value: object) -> object:
    """A version that pyinfra read as a number: 0.5 is not what was typed for 0.50."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("was read as a number; allowed: all of it, such as 0.32.0")
    return value
