"""What pip installs as a rig's engine, and the torch it may bring: a recipe's `wheels` section."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from node.rules.versions import PACKAGE
from schema.core.base import Frozen

_VARIANT = re.compile(r"(cpu|(cu|rocm|xpu)[0-9.]*)\Z")


def package_name(value: str) -> str:
    """The value, when it is a distribution's name as PEP 508 writes it; ValueError otherwise."""
    if not PACKAGE.match(value):
        raise ValueError("is not a package's name; allowed: letters, digits and . _ -")
    return value


def variant(value: str) -> str:
    """The value, when it is a build variant of torch; ValueError otherwise."""
    if not _VARIANT.match(value):
        raise ValueError("is not a variant of torch; allowed: cpu, or such as cu130, cu12, rocm6.4")
    return value


class WheelsSpec(Frozen):
    """The distribution that holds the engine, and the variant that its torch must have.

    `torch_variant` None: what is installed now. Where pip looks is the rig's own pip
    configuration, and what the recipe's venv says besides.
    """

    package: Annotated[str, AfterValidator(package_name)] = "vllm"
    torch_variant: Annotated[str, AfterValidator(variant)] | None = None
