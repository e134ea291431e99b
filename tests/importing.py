"""`python -m tests.importing FOLDER…`: imports each recipe of eugr's or sparkrun's below them.

Prints how many load and how many render the command line that their own launcher would run, those
that differ, and those that are refused. docs/reference/importing.md has the figures.

A command line is what bash makes of the launcher's text, with a function in the place of vllm; what
two lines mean to vLLM is compared, by the rules of its FlexibleArgumentParser.
A recipe of sparkrun's without a command is compared with schema.importing alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.rules.secret import holds_secret
from schema.core import SpecError
from schema.importing import command_words, imported
from schema.load import check_engine, launcher_of, read_file
from schema.plan import EngineSpec, Fabric, Node, Rig, engine_spec
from schema.recipe import Recipe
from schema.vllm import SHORT

_PRINTS = "set -f; vllm() { printf '%s\\0' \"$@\"; }; "
_RAY = r"--distributed-executor-backend(?:=|\s+)"


def theirs(data: Mapping[str, Any]) -> list[str]:
    """What their launcher gives `vllm serve`, without Ray. ValueError: it is a shell script."""
    values, text = data.get("defaults") or {}, str(data["command"])
    if launcher_of(data) == "eugr":
        values = {**values, "tensor_parallel": 1} if data.get("solo_only") else values
        text = re.sub(_RAY + r"\S+", "", text.format(**values).rstrip().rstrip("\\\n"))
        text = "\n".join(line for line in text.split("\n") if line.strip() not in ("", "\\"))
    else:
        values, former = {"model": data["model"], **values}, ""
        while former != text:
            former, text = text, re.sub(r"\{(.*?)\}", lambda m: _value(m, values), text)
        text = re.sub(r"\\ +\n", "\\\n", re.sub(_RAY + "ray", "", text.strip()))
        if "served_model_name" in values and "--served-model-name" not in text:
            text += f" --served-model-name {values['served_model_name']}"
    if re.search(r"[$`;|&<>()]", re.sub(r"'[^']*'|(?m:(?<=\s)#.*$)", "", text)):
        raise ValueError("is a shell script")
    run = ["/bin/bash", "--noprofile", "--norc", "-c", f"{_PRINTS}{text}\n"]
    done = subprocess.run(run, cwd="/", env={"PATH": "/none"}, capture_output=True, timeout=10)
    return done.stdout.decode().split("\0")[1:-1]


def _value(match: re.Match[str], values: Mapping[str, Any]) -> str:
    value = values.get(match.group().strip("{}"))
    return match.group() if value is None else str(value)


def ours(recipe: Recipe) -> list[str]:
    """What the head of a rig of the recipe's size gives `vllm serve`, without the rendezvous."""
    argv = _head(recipe).argv[2:]
    return list(argv[: argv.index("--nnodes")] if "--nnodes" in argv else argv)


def environ(recipe: Recipe) -> dict[str, str]:
    """The engine's environment on the head."""
    return _head(recipe).environ


def _head(recipe: Recipe) -> EngineSpec:
    count = recipe.multi_node.nnodes if recipe.multi_node else 1
    nodes = tuple(
        Node(
            name=f"spark{rank + 1}",
            role="worker" if rank else "head",
            rank=rank,
            lan_address=f"192.168.1.{rank + 11}",
            fabric_address=f"10.0.0.{rank + 1}",
            fabric_device="bond0",
            ssh_user="milo",
            home="/home/milo",
        )
        for rank in range(count)
    )
    rig = Rig(name="spark", nodes=nodes, fabric=Fabric())
    return engine_spec(rig, rig.head, recipe, recipe.default_profile)


def meaning(argv: Sequence[str]) -> dict[str, object]:
    """What vLLM takes of these words: long names, JSON as data, keys with dots as one map each.

    The last of two counts; keys with dots are put behind everything else.
    """
    found: dict[str, list[str]] = {}
    keys: dict[str, dict[str, Any]] = {}
    name = "model"
    for word in argv:
        flag, equals, rest = word.partition("=")
        if re.match(r"--?[A-Za-z]", word):
            root, dot, inner = flag.partition(".")
            name = SHORT.get(root, root.lstrip("-").replace("-", "_")) + dot + inner
            found.pop(name, None)
            values = [rest] if equals else []
        else:
            values = [*found.get(name, []), word]
        found[name] = values
    for name, values in list(found.items()):
        if "." in name:
            *path, last = name.split(".")
            place: dict[str, Any] = keys.setdefault(path[0], {})
            for part in path[1:]:
                place = place.setdefault(part, {})
            place[last] = _data("".join(values))
            found.pop(name)
    whole = {name: [_json(value) for value in values] for name, values in found.items()}
    return {**whole, **{name: [value] for name, value in keys.items()}}


def _data(text: str) -> object:
    """A value behind a key with dots, which vLLM reads as JSON where it is some."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json(text: str) -> object:
    """A value of its own: a map where it is one, else text."""
    found = _data(text)
    return found if isinstance(found, dict) else text


def compared(data: Mapping[str, Any], file: Path) -> list[str]:
    """The flags in which a neighbour's recipe and its import differ, a line each.

    SpecError: it was refused. ValueError: their line cannot be told.
    """
    got = meaning(ours(imported(data, file, file.stem).recipe()))
    wanted = meaning(
        theirs(data) if "command" in data else command_words(data, "sparkrun", str(file))
    )
    return [
        f"{name}: theirs {_shown(name, wanted)}, ours {_shown(name, got)}"
        for name in sorted({*wanted, *got})
        if wanted.get(name) != got.get(name)
    ]


def _shown(name: str, words: Mapping[str, object]) -> object:
    return "***" if name in words and holds_secret(name) else words.get(name)


def recipes(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The neighbours' recipes below the folder; what is no YAML is named."""
    for file in sorted(path for path in folder.rglob("*.y*ml") if path.is_file()):
        try:
            data, _ = read_file(file)
        except SpecError as error:
            print(f"passed over: {error}")
            continue
        if launcher_of(data) is not None:
            yield file, data


def main(folders: list[str]) -> int:
    """The exit status: 0 where each vLLM recipe loads and renders the same line."""
    count = loaded = same = others = 0
    for file, data in (found for folder in folders for found in recipes(Path(folder))):
        try:
            check_engine(data, str(file))
        except SpecError:
            others += 1
            continue
        count += 1
        try:
            differ = compared(data, file)
        except (SpecError, ValueError) as error:
            print(f"refused: {error}")
            continue
        loaded += 1
        same += not differ
        for line in differ:
            print(f"differs: {file}: {line}")
    print(
        f"{loaded} of {count} vLLM recipes load, {same} render the same command line; "
        f"{others} start another engine"
    )
    return 0 if same == loaded == count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
