"""pyinfra's merged data of one host against the type of the runbook that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import new_class
from typing import ClassVar, TypeVar

from schema.core.errors import SpecError, nearest, shown
from schema.core.parse import build, known_keys
from schema.core.types import PYINFRA_KEYS
from schema.inputs.host_data import HostData
from schema.inputs.runbook_data import RUNBOOKS

D = TypeVar("D", bound=HostData)
COMMAND_LINE = "--data"


@cache
def kind_of(runbooks: tuple[str, ...]) -> type[HostData]:
    """The type of a command line that names these runbooks: what any of them takes.

    A name that is none of ours (somebody's own deploy) takes what every runbook of ours takes.
    """
    known = all(name in RUNBOOKS for name in runbooks)
    kinds = [RUNBOOKS[name] for name in runbooks] if runbooks and known else [*RUNBOOKS.values()]
    return _merged(tuple(dict.fromkeys(kinds)))


def _merged(kinds: tuple[type[HostData], ...]) -> type[HostData]:
    """One type with the keys of all of them."""
    if len(kinds) == 1:
        return kinds[0]
    bases = [k for k in kinds if not any(o is not k and issubclass(o, k) for o in kinds)]
    space = {
        "__module__": __name__,
        "__doc__": "Several runbooks at once.",
        "__annotations__": {"unused": ClassVar[frozenset[str]]},
        "unused": frozenset.intersection(*(kind.unused for kind in kinds)),
    }
    made: type[HostData] = new_class(
        "RunbooksData", tuple(bases), exec_body=lambda ns: ns.update(space)
    )
    return made


def taken(kind: type[HostData]) -> list[str]:
    """The keys that --data may hold with this type."""
    return [key for key in known_keys(kind) if key not in kind.unused]


def runbooks_of(key: str) -> list[str]:
    """The runbooks that take this key, in alphabetical order."""
    return sorted(name for name, kind in RUNBOOKS.items() if key in taken(kind))


def host_data(
    name: str, data: Mapping[str, object], sources: Mapping[str, str], kind: type[D]
) -> D:
    """The checked data of host `name`.

    `data` is pyinfra's merged dict; `sources` says for a key where it came from
    (`group_data/spark.py`, `--data`), for the errors. `kind` is the runbook's type: --data holds no
    key that it does not take; inventory and group_data may hold any runbook's, since they
    describe the host for all of them. SpecError has a line for each problem.
    """

    def where(key: str) -> str:
        return f"{sources.get(key, 'inventory or group_data')}: host {name}"

    others = _others(data, kind, sources)
    problems = [*_strays(data, sources, kind, where)]
    checked: list[HostData] = []
    kinds: list[type[HostData]] = [kind, *others]
    for one in kinds:
        try:
            checked.append(build(one, {k: data[k] for k in known_keys(one) if k in data}, where))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(*dict.fromkeys(problems))
    for found in checked:
        if wrong := found.conflict():
            raise SpecError(f"{where(wrong[0])}: {wrong[1]}")
    own = checked[0]
    assert isinstance(own, kind)
    return own


def _others(
    data: Mapping[str, object], kind: type[HostData], sources: Mapping[str, str]
) -> list[type[HostData]]:
    """The types of other runbooks whose keys stand in inventory or group_data."""
    own = known_keys(kind)
    found = [
        RUNBOOKS[takers[0]]
        for key in data
        if key not in own and sources.get(key) != COMMAND_LINE and (takers := runbooks_of(key))
    ]
    return list(dict.fromkeys(found))


def _strays(
    data: Mapping[str, object],
    sources: Mapping[str, str],
    kind: type[HostData],
    where: Callable[[str], str],
) -> Iterator[str]:
    """A line for each key that nobody knows, and for each of --data that this runbook has no use
    for."""
    own = taken(kind)
    for key in data:
        takers = runbooks_of(key)
        if key in own or key in PYINFRA_KEYS or (takers and sources.get(key) != COMMAND_LINE):
            continue
        if takers:
            yield (
                f"{where(key)}: {key}: {_named(kind)} does not take it; "
                f"allowed: with {', '.join(takers)}; --data help=true lists the keys"
            )
            continue
        close = nearest(key, [*own, *PYINFRA_KEYS])
        yield (
            f"{where(key)}: unknown key {shown(key)}{close}; "
            f"allowed: {', '.join(sorted(own))}, and pyinfra's ssh_ keys"
        )


def _named(kind: type[HostData]) -> str:
    """The runbook of this type, for a person."""
    names = [name for name, one in RUNBOOKS.items() if issubclass(kind, one)]
    return " or ".join(names) or "this runbook"
