"""Gates of a swapped library: what may replace the plugin's own, and whether it stayed.

At every start HAMi's plugin copies its own over a file whose md5 differs (docker/vgpu-init.sh).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.cluster.mounted_library import (
    BASE,
    files_of,
    mappers_of,
    named,
    short,
    state_of,
    target_of,
)
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from schema.observed.library import Candidate, LibraryFile, LibraryLook
from schema.observed.snapshot import Unreadable

DEPLOY = "pyinfra INVENTORY deploys/libvgpu.py"
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
            remedy=f"{DEPLOY} --data target=PATH, with the file that a GPU pod mounts: "
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
            f'{DEPLOY} --data waive=libvgpu-other --data reason="…"',
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
            f"{DEPLOY} {names if len(lost) <= MOST_TYPED else reason}",
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
            remedy=f"{DEPLOY} --data library=FILE --data sha256={state.ours}",
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
            remedy=f"{DEPLOY} --data restart_pods=true with the same library, or restart them "
            "one by one",
        )
