"""pyinfra's merged data of one host against the type of the runbook that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from schema.core.errors import SpecError, nearest, shown
from schema.core.host_keys import HostKeys
from schema.core.parse import build, known_keys
from schema.core.types import PYINFRA_KEYS
from schema.inputs.runbooks import REMOVED, rigs_of, runbooks, runbooks_of, taken

D = TypeVar("D", bound=HostKeys)
COMMAND_LINE = "--data"


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
    checked: list[HostKeys] = []
    kinds: list[type[HostKeys]] = [kind, *others]
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
    data: Mapping[str, object], kind: type[HostKeys], sources: Mapping[str, str]
) -> list[type[HostKeys]]:
    """The types of other runbooks whose keys stand in inventory or group_data."""
    own, rigs = known_keys(kind), rigs_of(kind)
    found = [
        runbooks(rigs)[takers[0]]
        for key in data
        if key not in own
        and sources.get(key) != COMMAND_LINE
        and (takers := runbooks_of(key, rigs))
    ]
    return list(dict.fromkeys(found))


def _strays(
    data: Mapping[str, object],
    sources: Mapping[str, str],
    kind: type[HostKeys],
    where: Callable[[str], str],
) -> Iterator[str]:
    """A line for each key that nobody knows, and for each of --data that this runbook has no use
    for."""
    own = taken(kind)
    for key in data:
        takers = runbooks_of(key, rigs_of(kind))
        if key in own or key in PYINFRA_KEYS or (takers and sources.get(key) != COMMAND_LINE):
            continue
        if takers:
            yield (
                f"{where(key)}: {key}: {_named(kind)} does not take it; "
                f"allowed: with {', '.join(takers)}; --data help=true lists the keys"
            )
            continue
        if key in REMOVED:
            yield f"{where(key)}: {key}: {REMOVED[key]}"
            continue
        close = nearest(key, [*own, *PYINFRA_KEYS])
        names, more = own, ", and pyinfra's ssh_ keys"
        if sources.get(key) == COMMAND_LINE:
            names = [name for name in own if name not in rigs_of(kind).model_fields]
            more = "; --data help=true lists all keys"
        allowed = ", ".join(sorted(names)) or "none of its own"
        yield f"{where(key)}: unknown key {shown(key)}{close}; allowed{kind.rigs}: {allowed}{more}"


def _named(kind: type[HostKeys]) -> str:
    """The runbook of this type, for a person."""
    names = [name for name, one in runbooks(rigs_of(kind)).items() if issubclass(kind, one)]
    return " or ".join(names) or "this runbook"
