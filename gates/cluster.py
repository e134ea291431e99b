"""Kubernetes: memory and GPU limits, HAMi's library."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gates.core import Violation, section_unreadable, violation
from schema.cluster import (
    Candidate,
    Guarded,
    KubeLook,
    LibraryFile,
    LibraryLook,
    Mapper,
    ModelFiles,
    PodName,
    Swapped,
)
from schema.snapshot import Unreadable

# A shared GPU under Kubernetes: its limit and its library.

# How much of a card HAMi allows: CUDA_DEVICE_MEMORY_LIMIT[_i] in binary units, computed.
#
# HAMi-core reads the number with strtoul in base 0 and takes the last letter as its unit (k, m, g,
# of
# 1024): a leading 0 makes it octal, and 0 means "no limit" to one part and 0 bytes to another.

LIMIT_MIB = 1 << 20
GIB = 1 << 30
VARIABLE = "CUDA_DEVICE_MEMORY_LIMIT"
_UNITS = {"": 1, "k": 1 << 10, "m": LIMIT_MIB, "g": GIB}
_LIMIT = re.compile(r"([0-9]{1,15})([kmg]?)\Z", re.I)
_OOM = re.compile(r"Device (\d{1,3}) OOM (\d{1,18}) / (\d{1,18})")
ALLOWED = "allowed: a whole number with k, m or g (of 1024), such as 24000m"


class LimitError(ValueError):
    """A limit that may not be set; `str()` says why, with the numbers."""


@dataclass(frozen=True)
class Oom:
    """One refusal in a pod's log: what the device would hold, and what is allowed, in bytes."""

    device: int
    wanted: int
    allowed: int


def variable(device: int | None) -> str:
    """The variable's name: of one device, or of all."""
    return VARIABLE if device is None else f"{VARIABLE}_{device}"


def parse_limit(text: str) -> int:
    """A limit in bytes. LimitError for anything that HAMi-core would read as something else."""
    found = _LIMIT.match(text)
    if found is None:
        sign = "is negative" if text.startswith("-") else "is no limit that HAMi reads"
        raise LimitError(f"{text[:40]!r} {sign}; {ALLOWED}")
    number, unit = found[1], found[2].lower()
    if int(number) == 0:
        raise LimitError(
            f"{text!r} is 0 bytes to HAMi-core (`Total VRAM: 0 MiB`), not `no limit`; {ALLOWED}"
        )
    if number.startswith("0"):
        raise LimitError(f"{text!r} starts with 0: HAMi-core reads it as octal; {ALLOWED}")
    return int(number) * _UNITS[unit]


def shown(size: int) -> str:
    """A size in bytes, MiB and GiB: `25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB`."""
    return f"{size:,} bytes = {size / LIMIT_MIB:,.1f} MiB = {size / GIB:.2f} GiB"


def ooms(lines: Iterable[str]) -> tuple[Oom, ...]:
    """The refusals in a log, in its order."""
    found = (match for line in lines for match in _OOM.finditer(line))
    return tuple(Oom(*map(int, match.groups())) for match in found)


def largest(found: Iterable[Oom], device: int | None) -> Oom | None:
    """The largest request of a device (None: of any), or None where there is none."""
    rows = [oom for oom in found if device is None or oom.device == device]
    return max(rows, key=lambda oom: oom.wanted, default=None)


def most(hardware: int, reserve: int) -> int:
    """The largest limit: hardware less reserve, in whole MiB, in bytes."""
    return max(0, (hardware - reserve) // LIMIT_MIB) * LIMIT_MIB


def checked(limit: int, hardware: int, reserve: int, wanted: int | None) -> list[str]:
    """The arithmetic of a limit, a line each. LimitError when it does not fit.

    All in bytes. `wanted` is the largest request that was refused, None where none is known.
    """
    if limit > hardware:
        raise LimitError(
            f"the limit {shown(limit)} is more than the hardware has: {shown(hardware)}"
        )
    if hardware - limit < reserve:
        raise LimitError(
            f"the limit {shown(limit)} leaves {shown(hardware - limit)} of the hardware's "
            f"{shown(hardware)}; the reserve is {shown(reserve)}; allowed: up to "
            f"{most(hardware, reserve) // LIMIT_MIB}m, or a smaller reserve_mib"
        )
    if wanted is not None and limit < wanted:
        raise LimitError(
            f"the limit {shown(limit)} is less than the {shown(wanted)} that was asked for: "
            f"{shown(wanted - limit)} too little"
        )
    lines = [
        f"hardware  {shown(hardware)}",
        f"limit     {shown(limit)}",
        f"left      {shown(hardware - limit)} (reserve {shown(reserve)})",
    ]
    if wanted is not None:
        lines.append(f"wanted    {shown(wanted)}, headroom {shown(limit - wanted)}")
    return lines


def proposed(hardware: int, reserve: int, wanted: int | None) -> int:
    """The limit to set, in bytes: all but the reserve. LimitError when `wanted` does not fit.

    HAMi's number is the whole that the device would hold, so a limit of that size is enough; the
    rest of the card is given too, because the next request is larger.
    """
    limit = most(hardware, reserve)
    if wanted is not None and wanted > hardware:
        raise LimitError(
            f"the hardware cannot hold it: wanted {shown(wanted)}, there are {shown(hardware)}; a "
            "smaller model, context or cache is the answer, not a limit"
        )
    if wanted is not None and wanted > limit:
        raise LimitError(
            f"wanted {shown(wanted)}; hardware less reserve is {shown(limit)}; it fits only with "
            f"--data reserve_mib={max(0, hardware - wanted) // LIMIT_MIB}, or with a smaller "
            "model, "
            "context or cache"
        )
    if limit <= 0:
        raise LimitError(f"the reserve {shown(reserve)} leaves nothing of {shown(hardware)}")
    return limit


def as_text(limit: int) -> str:
    """A limit as the variable takes it: whole MiB where it is one, else bytes."""
    return f"{limit // LIMIT_MIB}m" if limit % LIMIT_MIB == 0 else str(limit)


# Gates of a Deployment on a shared GPU: its memory limit, its pods, and what their logs say.

GPU_LIMIT = "pyinfra INVENTORY deploys/gpu_limit.py"


def limits_readable(node: str, now: KubeLook) -> Iterator[Violation]:
    """`0m` is 0 bytes to HAMi-core, which then reports `Total VRAM: 0 MiB` (A3)."""
    for name, found in now.variables.items():
        if not name.startswith(VARIABLE) or found.value is None:
            continue
        try:
            parse_limit(found.value)
        except LimitError as error:
            yield violation(
                "gpu-limit",
                node,
                f"{name} of Deployment {now.name} is {found.value!r}",
                evidence=str(error),
                remedy=f"{GPU_LIMIT} --data limit=24000m (computed for your card)",
            )


def limits_inside(node: str, now: KubeLook) -> Iterator[Violation]:
    """What a pod's processes have counts: the plugin may set the variable too (fault 49), and
    Olares sets `0m` where the template has none (A3).
    """
    for pod in now.pods:
        for name, values in pod.live.values.items():
            wanted = now.variables[name].value if name in now.variables else None
            for value in values:
                if not name.startswith(VARIABLE) or value == wanted:
                    continue
                try:
                    parse_limit(value)
                    wrong = "" if wanted is None else f"the template says {wanted!r}"
                except LimitError as error:
                    wrong = str(error)
                if wrong:
                    yield violation(
                        "gpu-limit",
                        node,
                        f"{name} inside {pod.name} is {value!r}",
                        evidence=f"{wrong}; read in {pod.live.processes} processes of the pod",
                        remedy=f"{GPU_LIMIT} --data limit=24000m (computed for your card); "
                        "where the "
                        "plugin or the image's start sets it later, change it there",
                    )


def limit_stayed(node: str, now: KubeLook) -> Iterator[Violation]:
    """A chart that is deployed again brings its own template: the limit is 0m once more (A3)."""
    if isinstance(now.guard, Unreadable):
        yield section_unreadable(node, "cluster", now.guard)
    elif now.guard is not None and now.guard.differs:
        values = ", ".join(
            [
                *(f"{name}={value}" for name, value in now.guard.values.items()),
                *map(repr, now.guard.edits.values()),
            ]
        )
        yield violation(
            "gpu-limit-drift",
            node,
            f"Deployment {now.name} has lost what gpu_limit set",
            evidence=f"{'; '.join(now.guard.differs)}; guarded: {values}",
            remedy=f"{GPU_LIMIT} --data guard=true {_again(now.guard)}",
        )


def _again(guard: Guarded) -> str:
    """The data that set what is guarded once more, as typed in a shell; of limits the first. The
    webhook's URL is the operator's to fill in.
    """
    rows: dict[str, dict[str, str]] = {"limit": {}, "edit": dict(guard.edits), "set": {}}
    for name, value in guard.values.items():
        rows["limit" if name.startswith(VARIABLE) else "set"][name] = value
    words = []
    for name, value in [*rows.pop("limit").items()][:1]:
        device = name.removeprefix(VARIABLE).removeprefix("_")
        words += [f"limit={value}", *([f"device={device}"] if device else [])]
    words += [f"{key}={json.dumps(values)}" for key, values in rows.items() if values]
    words += [f"webhook_file={guard.webhook_file}"] if guard.webhook_file else []
    words += ["webhook=URL"] if guard.webhook else []
    return " ".join(f"--data {shlex.quote(word)}" for word in words)


def limit_enough(node: str, now: KubeLook) -> Iterator[Violation]:
    """`Device N OOM <wanted> / <allowed>`: the engine dies at its first request (A5)."""
    lines = [line for pod in now.pods for line in pod.log]
    worst = largest(ooms(lines), None)
    if worst is not None:
        lack = worst.wanted - worst.allowed
        yield violation(
            "gpu-limit-short",
            node,
            f"device {worst.device} of Deployment {now.name} wants more than its limit allows",
            evidence=f"Device {worst.device} OOM {worst.wanted} / {worst.allowed}: "
            f"{shown(lack)} too little",
            remedy=f"{GPU_LIMIT} --data wanted={worst.wanted}",
        )


def pods_run(node: str, now: KubeLook) -> Iterator[Violation]:
    """A pod in a crash loop serves nobody, whatever the Deployment is called."""
    for pod in now.pods:
        if pod.stuck and not pod.leaving:
            last = next((line for line in reversed(pod.log) if line.strip()), "no log")
            yield violation(
                "pod-stuck",
                node,
                f"{pod.name} does not come up: {pod.stuck}, {pod.restarts} restarts",
                evidence=f"{last[:300]}; event: {now.event or 'none'}",
                remedy=f"on {node}: sudo kubectl logs {shlex.quote(pod.name)} --previous",
            )


def models_fit(node: str, seen: ModelFiles, wanted: Mapping[str, str]) -> Iterator[Violation]:
    """Each file is whole and of its loader's format: `invalid magic characters` comes late (A2)."""
    for file in seen.files:
        kind = wanted[file.path]
        wrong = file.broken
        if file.format is not None and file.format != kind:
            wrong = f"it is {file.format}; its loader reads {kind}"
        if wrong:
            yield violation(
                "model-file",
                node,
                f"{file.path} on {node} is not what its loader reads",
                evidence=wrong if file.size is None else f"{wrong} ({file.size} bytes)",
                remedy=f"on {node}: download it again as {kind}, or name the format that the "
                "loader reads in group_data (models)",
                unknown=file.size is None,
            )


# Which library of a host counts: HAMi's plugin mounts `libvgpu.so.VERSION` where that exists, else
# `libvgpu.so` (nvinternal/plugin/util.go).

BASE = "libvgpu.so"
_TAG = re.compile(r":([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})(?:@|\Z)")


@dataclass(frozen=True)
class Target:
    """The file that the plugin mounts and how we know; `path` None: it cannot be told, and why."""

    path: str | None
    how: str


def files_of(look: LibraryLook) -> dict[str, LibraryFile]:
    """The folder's libraries by path; none where it cannot be read."""
    return {} if isinstance(look.files, Unreadable) else {file.path: file for file in look.files}


def target_of(look: LibraryLook, wanted: str | None = None) -> Target:
    """The file that counts: the one that was named, the plugin's version, what live pods mount."""
    files = files_of(look)
    base = f"{look.folder}/{BASE}"
    if wanted is not None:
        return Target(wanted, "named by target") if wanted in files else Target(
            None, f"target {wanted} is not there; there are: {', '.join(files) or 'none'}"
        )  # fmt: skip
    versioned = [path for path in files if path.startswith(base + ".")]
    if not versioned:
        if base in files:
            return Target(base, "the only one there")
        return Target(None, f"no {BASE} in {look.folder}")
    named = [path for tag in _tags(look) for path in versioned if _is_version(path, base, tag)]
    if len(set(named)) == 1:
        return Target(named[0], "the version of the plugin's image")
    mounted = {m.source for m in mappers_of(look) if m.pod and m.source in files}
    if len(mounted) == 1:
        return Target(str(mounted.pop()), "what the running GPU pods mount")
    seen = f"running pods mount {', '.join(sorted(map(str, mounted))) or 'none of them'}"
    tags = f"the plugin's image has the version {', '.join(_tags(look)) or 'unknown'}"
    return Target(None, f"there are {', '.join(sorted(files))}; {tags}; {seen}")


def _tags(look: LibraryLook) -> list[str]:
    if look.plugins is None or isinstance(look.plugins, Unreadable):
        return []
    return [match[1] for plugin in look.plugins if (match := _TAG.search(plugin.image))]


def _is_version(path: str, base: str, tag: str) -> bool:
    return path.removeprefix(base + ".").removeprefix("v") == tag.removeprefix("v")


def mappers_of(look: LibraryLook) -> tuple[Mapper, ...]:
    """Who maps a library; none where that cannot be read."""
    return () if isinstance(look.mappers, Unreadable) else look.mappers


def state_of(look: LibraryLook) -> Swapped | None:
    """What an earlier swap left written down; None where there was none or it is unreadable."""
    return None if isinstance(look.state, Unreadable) else look.state


def named(look: LibraryLook, mapper: Mapper) -> str:
    """A mapper in words: pod (or program), pid, and which bytes it has."""
    pods: dict[str, PodName] = look.pods if isinstance(look.pods, dict) else {}
    pod = pods.get(mapper.pod or "")
    who = f"{pod.namespace}/{pod.name}" if pod else (mapper.pod or mapper.argv0)
    return f"{who} (pid {mapper.pid}) has {short(mapper.sha256)}"


def short(sha256: str | None) -> str:
    """The first digits of a hash, as people compare them."""
    return sha256[:12] if sha256 else "unknown"


# Gates of a swapped library: what may replace the plugin's own, and whether it stayed.
#
# At every start HAMi's plugin copies its own over a file whose md5 differs (docker/vgpu-init.sh).

LIBVGPU = "pyinfra INVENTORY deploys/libvgpu.py"
# more names than somebody types one by one: a reason then stands for all of them
MOST_TYPED = 10


def readable(node: str, look: LibraryLook) -> Iterator[Violation]:
    """Folder, mappers and our own state are known: unknown blocks (P5)."""
    for section in (look.files, look.mappers, look.state):
        if isinstance(section, Unreadable):
            yield section_unreadable(node, "libvgpu", section)


def target_known(node: str, look: LibraryLook, wanted: str | None) -> Iterator[Violation]:
    """Swapping the file that the plugin does not mount does nothing, silently (fault 31)."""
    target = target_of(look, wanted)
    file = files_of(look).get(target.path or "")
    if file is None or file.kind != "file":
        yield violation(
            "libvgpu-target",
            node,
            f"it cannot be told which library the plugin on {node} mounts"
            if file is None
            else f"{file.path} on {node} is {file.broken}, not a library of its own",
            evidence=target.how,
            remedy=f"{LIBVGPU} --data target=PATH, with the file that a GPU pod mounts: "
            f"grep {BASE} /proc/PID/mountinfo",
            unknown=file is None,
        )


def known_content(
    node: str, look: LibraryLook, file: LibraryFile, ours: str
) -> Iterator[Violation]:
    """A library that is neither the original nor ours may be a new plugin's own, fixed one."""
    state = state_of(look)
    if state is None or state.target != file.path:
        return
    if file.sha256 not in (state.original, state.ours, ours):
        yield violation(
            "libvgpu-other",
            node,
            f"{file.path} on {node} is neither the original nor ours",
            evidence=f"it is {short(file.sha256)}; the original was {short(state.original)}, "
            f"ours was {short(state.ours)}",
            remedy="see what the new plugin version brings; to swap it all the same: "
            f'{LIBVGPU} --data waive=libvgpu-other --data reason="…"',
        )


def candidate_fits(
    node: str, look: LibraryLook, file: LibraryFile, candidate: Candidate
) -> Iterator[Violation]:
    """Whole, of the host's class and machine, loaded by a fresh process there (fault 30)."""
    host, wrong = look.host, []
    if candidate.elf is None:
        wrong.append(candidate.broken or "not readable")
    else:
        if not candidate.elf.shared:
            wrong.append("not a shared library")
        if (candidate.elf.bits, candidate.elf.machine) != (host.bits, host.machine):
            wrong.append(
                f"{candidate.elf.bits} bits {candidate.elf.machine}, the host is {host.bits} bits "
                f"{host.machine}"
            )
        if candidate.missing:
            wrong.append(f"the host lacks {', '.join(candidate.missing)}, which it needs")
        if candidate.refused and not wrong:
            wrong.append(candidate.refused)
    if wrong:
        yield violation(
            "libvgpu-candidate",
            node,
            f"the library does not load on {node}",
            evidence="; ".join(wrong),
            remedy="build it for this host, copy it whole, and compare its sha256",
        )


def symbols_kept(
    node: str, file: LibraryFile, candidate: Candidate, without: tuple[str, ...]
) -> Iterator[Violation]:
    """Everything that the replaced library exports; a process that needs a lost one dies (30).

    A build with fewer options lacks many that nobody calls: the 676 KB library that the Olares of
    the field report served with replaced one of 863 KB.
    """
    if file.elf is None or candidate.elf is None:
        return
    lost = sorted({*file.elf.exported} - {*candidate.elf.exported} - {*without})
    if lost:
        names = f"--data without={','.join(lost)}"
        reason = '--data waive=libvgpu-symbols --data reason="…"'
        yield violation(
            "libvgpu-symbols",
            node,
            f"the library lacks {len(lost)} names that {file.path} exports",
            evidence=", ".join(lost),
            remedy="build it with the same options; where nobody uses them: "
            f"{LIBVGPU} {names if len(lost) <= MOST_TYPED else reason}",
        )


def preloaded(node: str, look: LibraryLook) -> Iterator[Violation]:
    """The host's own /etc/ld.so.preload would load it into everything; the pods' one must."""
    for path, text in look.preload.items():
        if isinstance(text, Unreadable):
            said = text.unreadable
        elif path.startswith("/etc/") and text and BASE in text:
            said = f"every program of the host loads it: {' '.join(text.split())}"
        elif not path.startswith("/etc/") and text is not None and BASE not in text:
            said = f"no GPU pod loads it: it says {' '.join(text.split()) or 'nothing'}"
        else:
            continue
        yield violation(
            "libvgpu-preload",
            node,
            f"{path} on {node} is not as the plugin needs it",
            evidence=said,
            remedy=f"on {node}: sudo cat {shlex.quote(path)}; the plugin writes its own at "
            "its next start",
            unknown=isinstance(text, Unreadable),
        )


def stayed(node: str, look: LibraryLook) -> Iterator[Violation]:
    """What was swapped is still there: the plugin copies its own back at every start (A6)."""
    state = state_of(look)
    if state is None:
        return
    file = files_of(look).get(state.target)
    if file is None or file.sha256 != state.ours:
        found = "gone" if file is None else short(file.sha256)
        own = file is not None and file.sha256 == state.original
        yield violation(
            "libvgpu-drift",
            node,
            f"the plugin put its own library back: {state.target} on {node}"
            if own
            else f"{state.target} on {node} is no longer the library that was put there",
            evidence=f"it is {found}; ours is {short(state.ours)}, the original "
            f"{short(state.original)}; guard {'on' if state.guard else 'off'}",
            remedy=f"{LIBVGPU} --data library=FILE --data sha256={state.ours}",
        )


def old_mapped(node: str, look: LibraryLook, ours: str | None = None) -> Iterator[Violation]:
    """Whoever mapped the former file keeps it until it restarts (fault 29); a rename harms none."""
    state = state_of(look)
    wanted = ours or (state.ours if state else None)
    old = [m for m in mappers_of(look) if wanted and m.sha256 != wanted]
    if old:
        yield violation(
            "libvgpu-old-mapped",
            node,
            f"{len(old)} processes on {node} still have another library than ours mapped",
            evidence="; ".join(named(look, m) for m in old[:6]) + (" …" if len(old) > 6 else ""),
            remedy=f"{LIBVGPU} --data restart_pods=true with the same library, or restart them "
            "one by one",
        )
