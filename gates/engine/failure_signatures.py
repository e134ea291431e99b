"""What an engine's last words mean: exit statuses and log lines that incidents have taught us."""

from __future__ import annotations

import re
from collections.abc import Iterable

from schema.observed.units import Unit

# Lowest layer first, as the doctor prints: the first that fits is the cause.
WORDS: tuple[tuple[str, str], ...] = (
    (r"Illegal device id", "the GPU library inside the container does not fit its driver (A1)"),
    (
        r"less than desired GPU memory utilization|CUDA out of memory|Device \d+ OOM",
        "memory was short at its start: page cache of earlier loads, or somebody who holds it "
        "(C11, B2)",
    ),
    (
        r"EADDRINUSE|address already in use",
        "another process holds a port that it needs: an orphan, or a worker without --headless "
        "(C5, C10)",
    ),
    (r"gloo|NCCL|DistNetworkError|DistStoreError|Connection reset by peer", "it lost its peer"),
    (
        r"(Unable to find|No such) image",
        "the image is not on this node",
    ),
    (
        r"vllm: (command )?not found|vllm: No such file|\"vllm\": executable file not found",
        "the image or the venv has no `vllm` program any more (B3)",
    ),
    (
        r"No such file or directory|Is a directory|not found in \$PATH",
        "a file that it starts is missing inside the container (C13)",
    ),
    (r"invalid magic characters|HeaderTooLarge", "the weights have another format (A2)"),
    (r"w13.* referenced before assignment", "a baked patch was applied a second time (C15)"),
    (
        r"ShmRingBuffer",
        "VLLM_WORKER_MULTIPROC_METHOD=fork: self-inflicted, no fault of vLLM's code (C14)",
    ),
    (
        r"InvalidCxxCompiler",
        "the image has no compiler and TORCHDYNAMO_DISABLE is not set: the first request kills it",
    ),
    (r"unrecognized arguments|invalid .* value", "a flag that this vLLM does not know"),
)


def from_log(lines: Iterable[str]) -> str | None:
    """The likely cause that the lines name, or None."""
    text = "\n".join(lines)
    for pattern, cause in WORDS:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return None


def from_exit(unit: Unit) -> str | None:
    """The likely cause that a unit's exit status names, or None."""
    if unit.exit_kind in ("killed", "dumped"):
        by_hand = " (out of memory, or somebody's kill -9)" if unit.exit_status == 9 else ""
        return f"signal {unit.exit_status} ended it{by_hand}"
    if not unit.exit_kind and unit.exit_status == 0:
        return None
    meanings = {
        0: "its engine ended with status 0, as vLLM does when it loses its peer",
        126: "what it starts cannot be run: a folder in the place of a file, or no x bit",
        127: "a file that it starts does not exist, on the host or inside the container (C13)",
        137: "it was killed with signal 9: out of memory, or somebody's kill -9",
        203: "the program of its ExecStart does not exist (C13)",
    }
    return meanings.get(unit.exit_status)


def cause_of(unit: Unit) -> str:
    """The likely cause of a unit's end, from its log, else from its exit status."""
    return (
        from_log(unit.errors) or from_exit(unit) or "its log says why: journalctl -u " + unit.name
    )


def last_exit(unit: Unit) -> str:
    """How the unit's main process ended, for a line of evidence."""
    if not unit.exit_kind and unit.exit_status == 0:
        return "none of this start"
    kind = unit.exit_kind or "exited"
    return f"{kind} {'by signal' if kind != 'exited' else 'with status'} {unit.exit_status}"
