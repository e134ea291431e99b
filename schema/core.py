"""Base types, strings, errors in one line, YAML."""

from __future__ import annotations

import json
import keyword
import re
import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from node.rules.secret import has_credentials, holds_secret
from node.rules.text import DEVICE, HCA, IMAGE, is_http_url, printable

# Base types, one-line errors, quoting, YAML without surprises.

# The one error that wrong input raises: lines that a person reads and acts on.


class SpecError(Exception):
    """Wrong input: one line a problem, each naming the file, the key and what is allowed.

    `problems` holds the lines; str() joins them. Show it as it is, without a traceback.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class HiddenValueError(ValueError):
    """A refusal of a value that may be a secret: the error must not show it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known word, or the empty text."""
    close = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """The text for a word that is none of the known: the nearest one and the whole list."""
    names = sorted(known)
    listed = ", ".join(names) if names else "none exist"
    return f"unknown {what} {shown(word)}{nearest(word, names)}; allowed: {listed}"


def shown(value: object, secret: bool = False) -> str:
    """A value as an error shows it: one short line, control characters escaped; `***` a secret."""
    if secret:
        return "***"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


# The base of every rigbook type: frozen, and closed to keys nobody declared.

# the pattern of node/core/validate.py: of a change or a backup. It becomes a file's name on the
# operator's machine, and a word of the commands that a person is told
Id = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{5,80}$")]
# what a host says where it could not do what was asked: no escape and no newline
PrintableLine = Annotated[str, AfterValidator(printable)]


class Frozen(BaseModel):
    """A value that cannot change and that refuses unknown keys (`extra="forbid"`)."""

    # built at first use: a run pays for the types that it meets, not for all of them
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """The value as plain data: what pyinfra's `fact` and `debug-inventory --json` print."""
        return self.model_dump(mode="json")


class Said(Frozen):
    """What a host says in short texts, each one line that a terminal only shows: nobody on that
    host writes a line of rigbook's, or moves the cursor.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _one_line(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return tuple(cls._one_line(each) for each in value)
        return printable(value.replace("\n", " ")) if isinstance(value, str) else value


# A secret's value on its way from the operator to a host.


class Secret:
    """A value that no text shows: not repr, str or format, and json refuses it.

    facts/pack.py alone writes it, into what a host reads from its stdin.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"


def revealed(value: object) -> str:
    """json's `default` for a request that goes through stdin; TypeError for anything else."""
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(f"a {type(value).__name__} is no plain data")


# Quoting for the two places where an argument becomes text: bash and systemd's Exec lines.

# Everything else gets double quotes: blanks, quotes, `;` (a separator), `\`, non-ASCII.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./~%$-]+\Z")


def systemd_argument(value: str) -> str:
    """One argument of an Exec line, so that systemd passes exactly `value`.

    `%` and `$` are doubled, or systemd would expand specifiers and variables (systemd.service(5),
    "Command lines"). ValueError for a newline: a unit file has no line for it.
    """
    if "\n" in value or "\0" in value:
        raise ValueError("holds a newline or NUL, which no unit file can carry")
    escaped = value.replace("%", "%%").replace("$", "$$")
    if _PLAIN.match(escaped):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def systemd_lines(groups: Iterable[Sequence[str]]) -> list[str]:
    """Groups of arguments as the lines of one Exec command."""
    return [" ".join(systemd_argument(argument) for argument in group) for group in groups]


def shell_lines(argv: Sequence[str]) -> list[str]:
    """A command line as lines for bash: the command first, then one flag with its values each."""
    groups: list[list[str]] = [[]]
    for argument in argv:
        if argument.startswith("--"):
            groups.append([])
        groups[-1].append(shlex.quote(argument))
    return [" ".join(group) for group in groups]


# Checks for text that ends up in a command line, a unit file or a path.
#
# Each takes a value and gives it back; ValueError says what is wrong and what is allowed.

# systemd and docker's --env-file stop reading a line far later; no honest value is longer.
MAX_LINE = 8192
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z")
# vLLM's `--config.key value` sets one key of a JSON argument, `--config.key+` adds to its list.
_FLAG_NAME = re.compile(r"[a-z][a-z0-9_]*((\.[A-Za-z0-9_-]+)+\+?)?\Z")
_SHM_SIZE = re.compile(r"[1-9][0-9]*[kmg]\Z")
# C0, DEL, C1 and the two Unicode line separators.
_HOST = re.compile(r"(@[a-z]+|(@[a-z]+/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,127})\Z")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def single_line(value: str) -> str:
    """The value, when it holds no control character (newline, NUL, escape …)."""
    if _CONTROL.search(value):
        raise ValueError("holds a newline or another control character; allowed: one line of text")
    if len(value) > MAX_LINE:
        raise ValueError(f"is {len(value)} characters long; allowed: {MAX_LINE} or fewer")
    return value


def public(value: str) -> str:
    """A value that many may read (a command line, an image): no URL with a user or a password."""
    if has_credentials(value):
        raise HiddenValueError(
            "holds a URL with a user name or password; allowed: one without; what the engine reads "
            "from its environment may stand under secrets"
        )
    return value


def argument(value: str) -> str:
    """A value that may stand as one argument: one line, not empty, no leading `-`."""
    single_line(value)
    if not value or value.startswith("-"):
        raise ValueError("is empty or starts with `-`; allowed: a value that cannot read as a flag")
    return value


def plain_name(value: str) -> str:
    """A name of a host, user, device, unit or container: letters, digits and `. _ @ + -`."""
    if not _NAME.match(value):
        raise ValueError(
            "is not a plain name; allowed: letters, digits and . _ @ + -, no leading -"
        )
    return value


def group_name(value: str) -> str:
    """A name of an inventory's group: pyinfra reads it as a variable of Python."""
    if not _FLAG_NAME.match(value) or keyword.iskeyword(value):
        raise ValueError(
            "is not a group's name; allowed: lower-case letters, digits and _, no digit first"
        )
    return value


def mac_address(value: str) -> str:
    """One machine's MAC address, in small letters with colons: no multicast, not all zero."""
    text = value.lower().replace("-", ":")
    if not _MAC.match(text) or int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise ValueError("is not one machine's MAC address; allowed: such as 00:1a:2b:3c:4d:5e")
    return text


def device_name(value: str) -> str:
    """The name of a network device: at most 15 characters (IFNAMSIZ)."""
    if not DEVICE.match(value):
        raise ValueError(
            "is not a network device's name; allowed: 15 characters or fewer, letters, "
            "digits and . _ : @ + -, no leading -"
        )
    return value


def hca_name(value: str) -> str:
    """The name of an RDMA device, and its port where one is meant: rocep1s0f0, mlx5_0:1."""
    device, colon, port = value.partition(":")
    if not HCA.match(device) or (colon and not (port.isdecimal() and 0 < int(port) < 256)):
        raise ValueError(
            "is not an RDMA device's name; allowed: one of `ls /sys/class/infiniband`, with "
            ":PORT where it has several"
        )
    return value


def absolute_path(value: str) -> str:
    """An absolute path without `..`, of one line."""
    single_line(value)
    if not value.startswith("/") or ".." in value.split("/"):
        raise ValueError("is not an absolute path; allowed: /a/path, without `..`")
    return value


def mount_path(value: str) -> str:
    """An absolute path that `docker run -v` can take: without `:`."""
    if ":" in value:
        raise ValueError("holds a `:`, which `docker run -v` cannot take; allowed: /a/path")
    return absolute_path(value)


def home_path(value: str) -> str:
    """A path on a node: absolute, or below the login user's home (`~`); without `:` and `..`."""
    if value != "~" and not value.startswith(("~/", "/")):
        raise ValueError("is not a path on a node; allowed: /a/path or ~/a/path")
    mount_path("/home" + value.removeprefix("~") if value.startswith("~") else value)
    return value


def env_name(value: str) -> str:
    """The name of an environment variable."""
    if not _ENV_NAME.match(value):
        raise ValueError("is not a variable's name; allowed: letters, digits and _, no digit first")
    return value


def flag_name(value: str) -> str:
    """A key of vllm_serve: the flag's name with `_` for `-`, dots for a key of its JSON."""
    if not _FLAG_NAME.match(value):
        raise ValueError(
            "is not a flag's name; allowed: lower-case letters, digits and _, such as "
            "max_model_len, or compilation_config.cudagraph_mode for one key of a map"
        )
    return value


def image_reference(value: str) -> str:
    """A container image: repository, with a tag or a digest."""
    if not IMAGE.match(value):
        raise ValueError(
            "is not an image reference; allowed: such as host/name:tag or name@sha256:…"
        )
    return value


def memory_size(value: str) -> str:
    """A size for `docker run --shm-size`: a whole number with k, m or g (binary units)."""
    if not _SHM_SIZE.match(value):
        raise ValueError("is not a size; allowed: a whole number with k, m or g, such as 16g")
    return value


def host_name(value: str) -> str:
    """A host as pyinfra names it: a plain name, `@local`, or `@connector/name`."""
    if not _HOST.match(value):
        raise ValueError(
            "is not a host name; allowed: letters, digits and . _ -, or @connector/name"
        )
    return value


def http_url(value: str) -> str:
    """An http or https URL of printable ASCII without blanks and without a user's name.

    A webhook's URL is its password: a refusal does not quote it.
    """
    if not is_http_url(value):
        raise HiddenValueError(
            "is not a URL; allowed: http:// or https://, no blanks, no user name or password "
            "before @"
        )
    return value


# Names of kernels and of their modules, as they are typed.

# What `node` and GRUB take as a kernel's name.
RELEASE = re.compile(r"[0-9][A-Za-z0-9.+~_-]{0,100}\Z")


def release_name(value: str) -> str:
    """The value, when it is `current` or a kernel's release as `uname -r` says it."""
    if value != "current" and not RELEASE.match(value):
        raise ValueError("is no kernel; allowed: current, or such as 6.17.0-22-generic")
    return value


def module_name(value: str) -> str:
    """The value, when it is a kernel module's name with `_` for `-`."""
    if not re.match(r"[a-z][a-z0-9_]{0,31}\Z", value):
        raise ValueError("is no module's name; allowed: such as nvidia")
    return value


# Types of single values that people write: names, addresses, paths, and lists of them.

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


def types_listed(value: object) -> object:
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
Devices = Annotated[tuple[Device, ...], BeforeValidator(types_listed)]
Hcas = Annotated[tuple[Hca, ...], BeforeValidator(types_listed)]
Names = Annotated[tuple[Name, ...], BeforeValidator(types_listed)]
Arguments = Annotated[tuple[Argument, ...], BeforeValidator(types_listed)]
Paths = Annotated[tuple[AbsolutePath, ...], BeforeValidator(types_listed)]


def as_text(value: object) -> object:
    """A number as the text that it was; pyinfra reads digits as a number."""
    return str(value) if type(value) is int else value


def as_version(value: object) -> object:
    """A version that pyinfra read as a number: 0.5 is not what was typed for 0.50."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("was read as a number; allowed: all of it, such as 0.32.0")
    return value


# From plain data (YAML, pyinfra's data) to a type, with errors a person can act on.
#
# pydantic checks; this module turns its findings into `file: key: what is wrong; allowed: …`.

M = TypeVar("M", bound=BaseModel)

# A default that hangs on a key which is wrong itself, and has its line.
_FOLLOWS = "default_factory_not_called"
# Keys of an earlier release's recipes that are gone, each with what to do instead.
REMOVED = {
    "container.network": "an engine is always on its host's network; leave it out",
    "weights.total_bytes": "nothing reads it; leave it out",
    "container.build": "an image is not built on a node any more; leave this out and build it by "
    "hand: docs/runbooks/image.md",
}
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a map of keys and values",
    "model_type": "a map of keys and values",
    "tuple_type": "a list",
}


def build_parse(
    model: type[M],
    data: Mapping[str, object],
    where: Callable[[str], str],
    given: Mapping[str, object] | None = None,
) -> M:
    """An instance of `model` from plain data, checked strictly: no text for a number, or back.

    `where` gives the file that a top-level key came from (asked with "" for the whole). `given`
    are keys that the caller sets and a file must not. SpecError has one line for each problem.
    """
    given = given or {}
    taken = [
        _joined(where(key), (), unknown("key", key, set(known_keys(model)) - given.keys()))
        for key in data
        if key in given
    ]
    try:
        text = json.dumps({**data, **given}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(*taken, *_not_plain(data, where)) from error
    try:
        checked = model.model_validate_json(text, strict=True)
    except ValidationError as error:
        found = [dict(e) for e in error.errors(include_url=False)]
        lines = [_line(model, e, where, given) for e in found if e["type"] != _FOLLOWS]
        raise SpecError(*dict.fromkeys([*taken, *lines])) from None
    if taken:
        raise SpecError(*taken)
    return checked


def misfit(error: ValidationError) -> str:
    """Where a host's answer does not fit its type first, and how."""
    first = error.errors(include_url=False)[0]
    return f"does not fit at {'.'.join(map(str, first['loc']))}: {first['msg']}"


def known_keys(model: type[BaseModel]) -> list[str]:
    """The keys that `model` takes, as its files spell them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _not_plain(data: Mapping[str, object], where: Callable[[str], str]) -> list[str]:
    """The lines for values that are no plain data (objects, sets, NaN)."""
    lines = []
    for key, value in data.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            kind = type(value).__name__
            lines.append(
                f"{where(key)}: {key}: holds a value that is no plain data ({kind}); "
                "allowed: text, finite numbers, true, false, lists and maps"
            )
    return lines


def _line(
    model: type[BaseModel],
    found: dict[str, Any],
    where: Callable[[str], str],
    given: Mapping[str, object],
) -> str:
    """One finding of pydantic as a line of ours."""
    loc = tuple(part for part in found["loc"] if part != "[key]")
    kind, value, context = found["type"], found.get("input"), found.get("ctx", {})
    hidden = _may_be_secret(loc)
    if kind == "extra_forbidden":
        if gone := REMOVED.get(".".join(map(str, loc))):
            return _joined(where(str(loc[0])), loc, gone)
        parent = _model_at(model, loc[:-1])
        keys = set(known_keys(parent) if parent else []) - (
            given.keys() if parent is model else set()
        )
        text = unknown("key", str(loc[-1]), keys)
        return _joined(where(str(loc[0])), loc[:-1], text)
    if kind == "missing":
        text = "is missing; it has no default"
    elif kind == "value_error":
        hidden = hidden or isinstance(context["error"], HiddenValueError)
        text = str(context["error"]) if hidden else _with_value(value, str(context["error"]))
    elif kind == "literal_error":
        text = f"is {shown(value, hidden)}; allowed: {context['expected']}"
    elif kind in ("greater_than_equal", "greater_than", "less_than_equal"):
        text = f"is {shown(value, hidden)}; allowed: {_bound(kind, context)}"
    elif kind == "too_short":
        text = f"has too few entries; allowed: {context['min_length']} or more"
    elif kind == "json_invalid":
        text = "is nested too deeply or not valid Unicode; allowed: UTF-8 text"
    elif kind in _KINDS:
        hint = " (put it in quotes)" if kind == "string_type" and _is_scalar(value) else ""
        text = f"is {_described(value, hidden)}; allowed: {_KINDS[kind]}{hint}"
    else:
        text = f"is {_described(value, hidden)}, which this key does not take"
    return _joined(where(str(loc[0]) if loc else ""), loc, text)


def _joined(file: str, loc: tuple[int | str, ...], text: str) -> str:
    """`file: key: text`, with the key as a dotted path."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    # A key is free text, too: an escape sequence in it must not reach the terminal.
    path = path if path.isprintable() else ascii(path)
    return f"{file}: {path}: {text}" if path else f"{file}: {text}"


def _with_value(value: object, text: str) -> str:
    """A validator's own text, with the value it is about where that is one scalar."""
    return f"{shown(value)} {text}" if isinstance(value, str) else text


def _bound(kind: str, context: dict[str, Any]) -> str:
    if kind == "greater_than":
        return f"more than {context['gt']}"
    if kind == "greater_than_equal":
        return f"{context['ge']} or more"
    return f"{context['le']} or less"


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _may_be_secret(loc: tuple[int | str, ...]) -> bool:
    """Whether the value there may be a secret, by its keys: no error shows it."""
    return "secrets" in loc or any(isinstance(part, str) and holds_secret(part) for part in loc)


def _described(value: object, hidden: bool = False) -> str:
    """The value with its kind, as the person who wrote it would say; a secret's kind alone."""
    if value is None:
        return "empty (null)"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    word = "text" if isinstance(value, str) else "number"
    return (word if word == "text" else f"a {word}") if hidden else f"the {word} {shown(value)}"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model whose keys stand at `loc`; None where there is none."""
    kind: Any = model
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {f.alias or name: f for name, f in kind.model_fields.items()}
            kind = fields[str(part)].annotation
        else:
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
        options = [arg for arg in get_args(kind) if isinstance(arg, type) and arg is not type(None)]
        if get_origin(kind) not in (dict, tuple) and options:
            kind = options[0]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


# YAML as recipes use it: plain data, no key twice, errors as one line with the line's number.

# No recipe comes near this; a wrong file (weights, a log) is refused before it is parsed.
MAX_BYTES = 256 * 1024


class _NoAlias(yaml.composer.Composer):
    """Refuses aliases: with them a few hundred bytes stand for megabytes."""

    check_event: Any
    peek_event: Any

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                problem="an alias (*name); allowed: values written out", problem_mark=mark
            )
        return super().compose_node(parent, index)


class TextLoader(_NoAlias, yaml.BaseLoader):
    """Every scalar stays the text that it is, 41834 as well as 48cebd4ad."""


class _PlainLoader(_NoAlias, yaml.SafeLoader):
    """SafeLoader that refuses keys given twice, keys that are no text, and aliases."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str):
                problem = f"key {shown(key)} is not text; allowed: text (put it in quotes)"
            elif key in seen:
                problem = f"key {shown(key)} is given twice; allowed: each key once"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# A date stays the text that it is: no key of ours takes a date.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_map(path: Path, shown_as: str) -> dict[str, object]:
    """The map in a YAML file. SpecError (naming the file as `shown_as`) says what is wrong."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_BYTES:
            raise SpecError(
                f"{shown_as}: is {len(raw)} bytes; allowed: YAML of {MAX_BYTES} or fewer"
            )
        data = yaml.load(raw.decode(), Loader=_PlainLoader)
    except OSError as error:
        raise SpecError(f"{shown_as}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown_as}: is not UTF-8 text; allowed: YAML in UTF-8") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{shown_as}: {one_line(error)}") from None
    except RecursionError:
        raise SpecError(
            f"{shown_as}: is nested too deeply; allowed: a recipe's few levels"
        ) from None
    except ValueError as error:
        # PyYAML lets the error of a conversion (`!!int x`) through.
        raise SpecError(f"{shown_as}: {error}; allowed: valid YAML") from None
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise SpecError(f"{shown_as}: is {kind}; allowed: a map of keys and values")
    return data


def one_line(error: yaml.YAMLError) -> str:
    """`line 7, column 3: what is wrong`."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        text = f"{place}{error.problem or error.context}"
    else:
        text = str(error).splitlines()[0]
    return text if "; allowed: " in text else f"{text}; allowed: valid YAML"


# What inventory, group_data and --data say of a host of any rig: the keys of every runbook.


def key(default: Any, says: str, unit: str = "", **more: Any) -> Any:
    """A key of --data: its default, what it is for, and the unit of its number, for `help`.

    `more` are pydantic's own: bounds, an alias, `repr=False` for a secret.
    """
    return Field(default, description=says, json_schema_extra={"unit": unit}, **more)


class HostKeys(Frozen):
    """What every runbook takes on every rig. A list may be given as `a,b`."""

    # What this runbook has no use for, of the keys that the others take.
    unused: ClassVar[frozenset[str]] = frozenset()
    # The kind of rig that these keys are for, where they are not for the usual one.
    rigs: ClassVar[str] = ""

    lan_address: Address = key(..., "where the host is reached")
    ssh_user: Name = key(..., "who logs in, and whose files the engine's are")
    rig: Name = key(..., "the rig's name")
    driver_module: Module | None = key(
        None, "the GPU driver's kernel module; none: nvidia, where the rig needs it"
    )
    waive: Names = key((), "codes of findings that shall not block; with reason")
    reason: Argument | None = key(None, "why that is safe now; it goes into the journal")

    def conflict(self) -> tuple[str, str] | None:
        """A key, and what is wrong with it beside the others; None where they go together."""
        if self.waive and not self.reason:
            return "waive", (
                'waive: needs a reason; allowed: --data waive=CODE --data reason="why this is safe '
                'now"'
            )
        if self.reason and not self.waive:
            return "reason", "reason: without waive; allowed: together with waive"
        return None
