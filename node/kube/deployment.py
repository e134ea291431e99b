"""A Deployment's JSON: where a container's variable stands, the patch that sets it, what differs.

A variable stands in `env`, or in one `export NAME=VALUE` (or `NAME=VALUE command`) of a shell line
in `args` or `command`. Anything else of these two is edited by its exact text, which stands there
once. What cannot be told for sure is refused: a patch must change one value.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from node.core.errors import Json, NodeError

# what a shell takes as it is written
PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./-]*$")
# the server moves these itself with every change
_OWN = ("resourceVersion", "generation", "managedFields")
REVISION = "deployment.kubernetes.io/revision"
# stands where a variable's name does; no variable's name has a dot
REPLICAS = "spec.replicas"


class Place(NamedTuple):
    """Where a value stands: `env`, or an element of `args` or `command`; absent: value None."""

    kind: str
    at: int
    value: str | None
    text: str


def refused(message: str, remedy: str = "") -> NodeError:
    """Gives the error for a Deployment that is not touched."""
    return NodeError(message, "not_patched", remedy)


def container_of(deployment: Json, wanted: str | None, first: bool = False) -> Json:
    """Gives a container of the pod template (`first`: any will do).

    Raises NodeError that lists those that there are.
    """
    name = deployment["metadata"]["name"]
    boxes = deployment["spec"]["template"]["spec"]["containers"]
    names = [box["name"] for box in boxes]
    if wanted is None and (first or len(boxes) == 1):
        found: Json = boxes[0]
        return found
    if wanted not in names:
        what = "needs container" if wanted is None else f"has no container {wanted!r}"
        raise refused(f"Deployment {name} {what}; there are: {', '.join(names)}",
                      "--data container=NAME")  # fmt: skip
    return next(box for box in boxes if box["name"] == wanted)


def find(box: Json, name: str) -> Place:
    """Gives where a variable of a container stands. Raises NodeError when that is not one place."""
    rows = [row for row in box.get("env") or [] if row.get("name") == name]
    if len(rows) > 1:
        raise refused(f"{name} stands {len(rows)} times in env of container {box['name']}")
    if rows and "valueFrom" in rows[0]:
        raise refused(
            f"{name} of container {box['name']} comes from {_source(rows[0])}: set it there"
        )
    shell = [place for key in ("command", "args") for place in _in_shell(box, key, name)]
    count = len(shell) + len(rows)
    if count > 1:
        raise refused(
            f"{name} of container {box['name']} stands in {count} places (env and shell lines): "
            "the last one wins, and it is not clear which that is",
            "leave it in one place",
        )
    if shell:
        return shell[0]
    return Place("env", -1, rows[0].get("value", "") if rows else None, "")


def value_of(deployment: Json, box: Json, name: str) -> str | None:
    """Gives the value of a variable, or how many pods there are to be. Raises as `find`."""
    if name == REPLICAS:
        return str(deployment["spec"].get("replicas", 1))
    return find(box, name).value


def find_text(box: Json, old: str, new: str) -> Place:
    """Gives where one of two texts stands in `command` or `args`, and which (`value`). Raises
    NodeError unless one of them stands there exactly once, and the other not beside it.
    """
    rows = [Place(kind, at, None, str(text)) for kind in ("command", "args")
            for at, text in enumerate(box.get(kind) or [])]  # fmt: skip

    def there(text: str, other: str) -> bool:
        counts = [sum(_count(row.text, each) for row in rows) for each in (text, other)]
        return counts == [1, _count(text, other)]

    for text, other in ((old, new), (new, old)):
        if there(text, other):
            return next(row for row in rows if text in row.text)._replace(value=text)
    count = sum(_count(row.text, old) for row in rows)
    raise refused(
        f"{old!r} stands {count} times in command and args of container {box['name']}"
        + (f", and {new!r} beside it" if count == 1 else ""),
        "give a text that one element of them has once: kubectl get deployment -o yaml",
    )


def _count(text: str, part: str) -> int:
    """Gives how often a text stands in another one, also where it overlaps itself."""
    return sum(text.startswith(part, at) for at in range(len(text)))


def _edited(box: Json, edits: dict[str, str]) -> dict[str, list[str]]:
    """Gives `command` and `args` as they read once each text is replaced that is to be."""
    found: dict[str, list[str]] = {}
    for old, new in edits.items():
        place = find_text({**box, **found}, old, new)
        if place.value == old:
            found.setdefault(place.kind, list(box[place.kind]))
            found[place.kind][place.at] = place.text.replace(old, new)
    return found


def _source(row: Json) -> str:
    return ", ".join(row["valueFrom"]) or "elsewhere"


def _in_shell(box: Json, key: str, name: str) -> list[Place]:
    """Gives the assignments of a variable in a container's shell lines."""
    found: list[Place] = []
    for index, text in enumerate(box.get(key) or []):
        if not isinstance(text, str) or not re.search(rf"(?<![\w$]){re.escape(name)}=", text):
            continue
        values = [match.group(2) for match in _assignment(name).finditer(text)]
        if len(values) != 1 or len(re.findall(rf"(?<![\w$]){re.escape(name)}=", text)) != 1:
            raise refused(
                f"{key}[{index}] of container {box['name']} sets {name} in a way that is not read "
                "for sure (quoted, computed, or more than once): it is not touched",
                "write it as: export NAME=VALUE",
            )
        found.append(Place(key, index, values[0], text))
    return found


def _assignment(name: str) -> Any:
    """Gives the pattern of a plain assignment: at a word's start, its value of plain characters."""
    start = r"(^|[\s;&|({])"
    return re.compile(rf"{start}{re.escape(name)}=([A-Za-z0-9_@%+=:,./-]*)(?=$|[\s;&|)}}])")


def replaced(place: Place, name: str, value: str) -> str:
    """Gives the shell line with the one assignment's value replaced."""
    if not PLAIN.match(value):
        raise refused(f"{name}: {value[:60]!r} would need quotes in the shell line that sets it")
    return str(_assignment(name).sub(lambda m: f"{m.group(1)}{name}={value}", place.text, count=1))


def patch(
    deployment: Json, box: Json, values: dict[str, str | None], edits: dict[str, str]
) -> Json:
    """Gives the strategic merge patch that sets variables of one container (None: takes one away)
    and replaces texts of its command line.

    It names the container and the variable, so that sidecars and other variables stay, and the
    resourceVersion, so that the server refuses it when somebody else wrote meanwhile.
    """
    change: Json = {"name": box["name"], **_lines(box, values, edits)}
    spec: Json = {}
    for name in sorted(values):
        value = values[name]
        if name == REPLICAS:
            spec["replicas"] = int(value or 0)
            continue
        if find(box, name).kind == "env":
            row = {"name": name, "value": value}
            gone = {"name": name, "$patch": "delete"}
            change.setdefault("env", []).append(gone if value is None else row)
    if len(change) > 1:
        spec["template"] = {"spec": {"containers": [change]}}
    version = deployment["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": spec}


def _lines(box: Json, values: dict[str, str | None], edits: dict[str, str]) -> dict[str, list[str]]:
    """Gives `command` and `args` as they read once what stands there is set; none that is not.

    Raises NodeError for edits that their reverse would not take back byte for byte.
    """
    todo = {old: new for old, new in edits.items() if find_text(box, old, new).value == old}
    found = _edited(box, todo)
    back = _edited({**box, **found}, {new: old for old, new in todo.items()})
    if {**found, **back} != {kind: list(box[kind]) for kind in found}:
        raise refused(f"the edits of container {box['name']} overlap", "make one text of them")
    for name in sorted(values):
        value, now = values[name], {**box, **found}
        place = Place("env", -1, None, "") if name == REPLICAS else find(now, name)
        if place.kind == "env":
            continue
        if value is None:
            raise refused(f"{name} stands in a shell line: it cannot be taken away")
        found[place.kind] = list(now[place.kind])
        found[place.kind][place.at] = replaced(place, name, value)
    for old, new in edits.items():
        if find_text({**box, **found}, old, new).value != new:
            raise refused(f"{new!r} holds a variable that is set as well", "leave it out of one")
    return found


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Gives a document as path → scalar; rows of a list by their `name` where each has one."""
    if isinstance(value, dict):
        pairs = [(f"{path}.{key}" if path else str(key), part) for key, part in value.items()]
    elif isinstance(value, list):
        named = all(isinstance(row, dict) and "name" in row for row in value)
        unique = named and len({row["name"] for row in value}) == len(value)
        pairs = [(f"{path}[{row['name'] if unique else n}]", row) for n, row in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for inner, part in pairs:
        found.update(flat(part, inner))
    return found if pairs else {path: value}


def differences(before: Json, after: Json) -> list[Json]:
    """Gives what differs between two Deployments, the server's own counters and status aside."""
    sides = []
    for document in (before, after):
        meta = {k: v for k, v in document["metadata"].items() if k not in _OWN}
        notes = {k: v for k, v in (meta.get("annotations") or {}).items() if k != REVISION}
        sides.append(flat({"metadata": {**meta, "annotations": notes}, "spec": document["spec"]}))
    old, new = sides
    return [
        {"path": path, "before": old.get(path), "after": new.get(path)}
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path) or (path in old) != (path in new)
    ]


def expected(box: Json, values: dict[str, str | None], edits: dict[str, str]) -> list[str]:
    """Gives the paths that a patch of these values and texts may change: exactly these."""
    base = f"spec.template.spec.containers[{box['name']}]"
    paths: set[str] = set()
    for name in values:
        if name == REPLICAS:
            paths.add(name)
            continue
        if find(box, name).kind == "env":
            paths.update((f"{base}.env[{name}].value", f"{base}.env[{name}].name"))
    for kind, lines in _lines(box, values, edits).items():
        old, new = (flat(side, f"{base}.{kind}") for side in (box[kind], lines))
        paths.update(path for path in {*old, *new} if old.get(path) != new.get(path))
    return sorted(paths)
