"""The second runtime: an engine that lives in a virtual environment, under a unit of its own."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from node.rules.secret import has_credentials
from schema.core.base import Frozen
from schema.core.errors import HiddenValueError
from schema.core.strings import home_path, single_line
from schema.core.types import AbsolutePath, Name

# PEP 440, as far as releases of an engine go: 0.19.2rc1, 0.32.0+cpu, 0.20.1rc1.dev16+g7a1eb8ac2
_VERSION = re.compile(r"[0-9][0-9a-zA-Z]*(\.[0-9a-zA-Z]+)*(\+[0-9a-zA-Z]+(\.[0-9a-zA-Z]+)*)?\Z")
# Where wheels come from and which are taken; what moves an install elsewhere is not among them.
_PIP = re.compile(
    r"(--pre|--no-index|--no-deps|--prefer-binary"
    r"|--(index-url|extra-index-url|find-links|constraint|only-binary|trusted-host)=\S+)\Z"
)


def version_text(value: str) -> str:
    """A version of a Python distribution, such as 0.19.2rc1 or 0.32.0+cpu."""
    if not _VERSION.match(value):
        raise ValueError("is not a version; allowed: such as 0.19.2rc1 or 0.32.0+cpu")
    return value


def pip_argument(value: str) -> str:
    """One argument of `pip install` that says where wheels come from, as --option=value."""
    if has_credentials(value):
        raise HiddenValueError(
            "holds a URL with a user name or password, which pip's command line would show to all; "
            "allowed: the URL without them, and the credentials in the pip.conf or ~/.netrc "
            "of the venv's owner on the node"
        )
    if not _PIP.match(single_line(value)):
        raise ValueError(
            "is not allowed for pip here; allowed: --pre --no-index --no-deps --prefer-binary, "
            "and --index-url= --extra-index-url= --find-links= --constraint= --only-binary= "
            "--trusted-host= with a value"
        )
    return value


Version = Annotated[str, AfterValidator(version_text)]


class VenvSpec(Frozen):
    """A venv with the engine. `path` is its folder, or a link to the active one of several.

    `user` None: the login user of the node. `version` is what the distribution `vllm` in it must
    be. `wheels` (a folder on the node) and `pip_args` say where an upgrade takes wheels from.
    """

    path: Annotated[str, AfterValidator(home_path)]
    user: Name | None = None
    version: Version | None = None
    wheels: AbsolutePath | None = None
    pip_args: tuple[Annotated[str, AfterValidator(pip_argument)], ...] = ()
