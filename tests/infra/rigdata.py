"""The merged data of a rig's hosts as JSON, as pyinfra itself would merge it.

`python -m tests.infra.rigdata INVENTORY [KEY=VALUE ...]`. A process of its own, because importing
pyinfra's command line patches the standard library for gevent.
"""

from __future__ import annotations

import json
import sys

from pyinfra.api import State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_state
from pyinfra_cli.exceptions import CliError, UnexpectedExternalError
from pyinfra_cli.inventory import make_inventory
from pyinfra_cli.util import parse_cli_arg

from deploys.plans.rig import data_of
from schema.core import SpecError
from schema.load import host_datas
from tests.infra.plugin import ROOT


def collect(inventory: str, pairs: list[str]) -> dict[str, object]:
    """`{"hosts": {name: data}, "sources": {name: {key: file}}}`; `pairs` as for pyinfra's --data.

    SpecError for data that no rig may have; what pyinfra raises for a file it cannot run.
    """
    override: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"--rig-data: {pair!r} has no value; allowed: KEY=VALUE")
        override[key] = parse_cli_arg(value)
    state = State()
    # As deploys.plans.cli does: errors then name this inventory.
    state.__dict__["rigbook_inventory"] = inventory
    with ctx_state.use(state):
        made = make_inventory(inventory, override_data=override, cwd=str(ROOT))
        both = {host.name: data_of(host) for host in made}
    hosts = {name: data for name, (data, _) in both.items()}
    sources = {name: source for name, (_, source) in both.items()}
    # Before the JSON below: data that JSON cannot hold is a finding with a file and a key.
    host_datas(hosts, sources)
    return {"hosts": hosts, "sources": sources}


def main(arguments: list[str]) -> int:
    """Prints the JSON, or one line a problem on stderr; the exit status."""
    inventory, *pairs = arguments
    try:
        print(json.dumps(collect(inventory, pairs)))
    except SpecError as error:
        print(error, file=sys.stderr)
    except UnexpectedExternalError as error:
        cause = error.exception
        print(f"{error.filename}: {type(cause).__name__}: {cause}", file=sys.stderr)
    except (CliError, PyinfraError, SyntaxError, OSError, UnicodeDecodeError) as error:
        print(f"{inventory}: {type(error).__name__}: {error}", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
