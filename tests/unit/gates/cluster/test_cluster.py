"""The doctor's findings about a Deployment on a shared GPU, with the seed's lines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

import pytest

from gates import cluster
from gates.cluster import target_of
from gates.core import Violation, apply_waivers
from schema.cluster import Guarded, KubeLook, LibraryLook, Live, ModelFile, ModelFiles
from schema.snapshot import Unreadable
from tests.unit.builders.host_parts import (
    BASE,
    FOLDER,
    LIBRARY_NAMES,
    NAME,
    OOM,
    ORIGINAL,
    OTHER,
    OUR_LIBRARY,
    candidate,
    elf,
    file,
    kube_look,
    library_look,
    mapper,
    plugin,
    swapped,
)

EDITS = {"--slots 4": "--slots 0"}


@pytest.mark.parametrize(("value", "count"), [("0m", 1), ("24x", 1), ("24000m", 0), (None, 0)])
def test_a_limit_that_hami_misreads(value: str | None, count: int) -> None:
    """Incident A3; another variable of that value is nobody's business."""
    found = list(cluster.limits_readable("one", kube_look(value)))
    assert [v.code for v in found] == ["gpu-limit"] * count


@pytest.mark.parametrize(
    ("template", "inside", "part"),
    [
        ("24000m", ("24000m",), None),
        ("24000m", ("20000m", "24000m"), "the template says '24000m'"),
        (None, ("0m",), "0 bytes to HAMi-core"),
        (None, ("20000m",), None),
        ("24000m", (), None),
    ],
)
def test_what_the_processes_have_counts(
    template: str | None, inside: tuple[str, ...], part: str | None
) -> None:
    """Fault 49, incident A3: the plugin sets the variable after the template."""
    live = Live(processes=2, values={NAME: inside, "OTHER": ("1",)})
    found = list(cluster.limits_inside("one", kube_look(template, live=live)))
    assert [v.code for v in found] == (["gpu-limit"] if part else [])
    assert part is None or part in found[0].evidence


def test_the_oom_line_names_what_is_lacking() -> None:
    """Incident A5."""
    found = list(cluster.limit_enough("one", kube_look(log=("boot", OOM))))
    assert [v.code for v in found] == ["gpu-limit-short"]
    assert "115,303,680 bytes = 110.0 MiB" in found[0].evidence
    assert "--data wanted=24232551680" in found[0].remedy
    assert list(cluster.limit_enough("one", kube_look(log=("fine",)))) == []


def guarded(*differs: str, **values: str) -> KubeLook:
    """A Deployment that a guard watches, and what of it differs."""
    guard = Guarded(container="engine", values={NAME: "24000m", **values}, edits=EDITS,
                    webhook=False, webhook_file="/root/hook", differs=differs)  # fmt: skip
    return kube_look().model_copy(update={"guard": guard})


def test_a_limit_that_a_chart_took_away_is_named_with_the_way_back() -> None:
    """A chart that is deployed again resets it in silence; the remedy works as it is typed."""
    assert list(cluster.limit_stayed("one", kube_look())) == []
    assert list(cluster.limit_stayed("one", guarded())) == []
    lost = f"{NAME} is '0m', it was set to '24000m'"
    (found,) = cluster.limit_stayed("one", guarded(lost, SPEC="a b"))
    assert (found.code, found.severity) == ("gpu-limit-drift", "block") and lost in found.evidence
    words = shlex.split(found.remedy)
    assert words[:3] == ["pyinfra", "INVENTORY", "deploys/gpu_limit.py"]
    data = dict(word.split("=", 1) for word in words[3:] if word != "--data")
    assert data == {"guard": "true", "limit": "24000m", "device": "0", "set": '{"SPEC": "a b"}',
                    "edit": json.dumps(EDITS), "webhook_file": "/root/hook"}  # fmt: skip


def test_a_guard_that_cannot_be_read_is_not_one_that_is_content() -> None:
    dark = kube_look().model_copy(update={"guard": Unreadable(unreadable="limit.json is not JSON")})
    assert [v.code for v in cluster.limit_stayed("one", dark)] == ["cluster-unreadable"]


def test_a_pod_in_a_crash_loop() -> None:
    stuck = kube_look(log=("Traceback", "asyncio.exceptions.TimeoutError", ""),
                 stuck="CrashLoopBackOff", restarts=7)  # fmt: skip
    found = list(cluster.pods_run("one", stuck))
    assert [v.code for v in found] == ["pod-stuck"]
    assert found[0].evidence.startswith("asyncio.exceptions.TimeoutError")
    assert list(cluster.pods_run("one", kube_look(stuck="CrashLoopBackOff", leaving=True))) == []
    assert list(cluster.pods_run("one", kube_look())) == []


@pytest.mark.parametrize(
    ("kind", "broken", "wanted", "part"),
    [
        ("gguf", None, "safetensors", "it is gguf; its loader reads safetensors"),
        ("safetensors", None, "gguf", "it is safetensors; its loader reads gguf"),
        ("gguf", "cut off: its header promises 9 bytes, there are 8", "gguf", "cut off"),
        ("unknown (starts with 70ff)", None, "gguf", "unknown (starts with 70ff)"),
        (None, "/m: No such file or directory", "gguf", "No such file"),
        ("gguf", None, "gguf", None),
    ],
)
def test_target_and_drafter_are_what_their_loaders_read(
    kind: str | None, broken: str | None, wanted: str, part: str | None
) -> None:
    """Incident A2: a GGUF drafter for a loader of safetensors, and the reverse."""
    size = 8 if kind else None
    file = ModelFile(path="/m", size=size, format=kind, said="", broken=broken)
    found = list(cluster.models_fit("one", ModelFiles(files=(file,)), {"/m": wanted}))
    assert [v.code for v in found] == (["model-file"] if part else [])
    assert part is None or part in found[0].evidence


# The arithmetic of a memory limit, with the seed's numbers.

MIB = cluster.LIMIT_MIB
CARD = 24_463 * MIB
WANTED, ALLOWED = 24_232_551_680, 24_117_248_000
LINE = f"[HAMI-core ERROR allocator.c:56]: Device 0 OOM {WANTED} / {ALLOWED}"


@pytest.mark.parametrize(
    ("text", "size"),
    [("24000m", 25_165_824_000), ("24000M", 25_165_824_000), ("23g", 24_696_061_952),
     ("1k", 1024), ("25165824000", 25_165_824_000), ("23000m", ALLOWED)],
)  # fmt: skip
def test_units_are_binary(text: str, size: int) -> None:
    assert cluster.parse_limit(text) == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0m", "Total VRAM: 0 MiB"),
        ("0", "Total VRAM: 0 MiB"),
        ("00g", "Total VRAM: 0 MiB"),
        ("-1", "is negative"),
        ("-1m", "is negative"),
        ("24x", "no limit that HAMi reads"),
        ("24GiB", "no limit that HAMi reads"),
        ("24 g", "no limit that HAMi reads"),
        ("1e9", "no limit that HAMi reads"),
        ("1.5g", "no limit that HAMi reads"),
        ("", "no limit that HAMi reads"),
        ("m", "no limit that HAMi reads"),
        ("24000m; touch /tmp/x", "no limit that HAMi reads"),
        ("24000m\n", "no limit that HAMi reads"),
        ("024000m", "octal"),
        ("0x10g", "no limit that HAMi reads"),
    ],
)
def test_fault_50_what_hami_would_misread_is_refused(text: str, said: str) -> None:
    with pytest.raises(cluster.LimitError, match=said):
        cluster.parse_limit(text)


def test_the_seeds_limit_is_accepted_with_463_mib_left() -> None:
    """Incident A5: 24000m against 24,463 MiB, 24,232,551,680 bytes wanted."""
    lines = cluster.checked(cluster.parse_limit("24000m"), CARD, 256 * MIB, WANTED)
    assert lines[1].endswith("25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB")
    assert lines[2].startswith("left      485,490,688 bytes = 463.0 MiB = 0.45 GiB")
    assert "headroom 933,272,320 bytes = 890.0 MiB" in lines[3]


def test_the_seeds_first_limit_is_too_small() -> None:
    with pytest.raises(
        cluster.LimitError, match=r"115,303,680 bytes = 110\.0 MiB = 0\.11 GiB too little"
    ):
        cluster.checked(ALLOWED, CARD, 256 * MIB, WANTED)


def test_more_than_the_hardware_and_less_than_the_reserve() -> None:
    with pytest.raises(cluster.LimitError, match="more than the hardware has"):
        cluster.checked(cluster.parse_limit("24464m"), CARD, 0, None)
    with pytest.raises(cluster.LimitError, match="allowed: up to 24207m"):
        cluster.checked(cluster.parse_limit("24208m"), CARD, 256 * MIB, None)
    assert cluster.checked(CARD, CARD, 0, CARD)


def test_the_proposal_is_all_but_the_reserve() -> None:
    assert cluster.as_text(cluster.proposed(CARD, 463 * MIB, WANTED)) == "24000m"
    assert cluster.as_text(cluster.proposed(CARD, 256 * MIB, WANTED)) == "24207m"
    assert cluster.as_text(cluster.proposed(CARD + 5, 0, None)) == "24463m"


def test_what_the_hardware_cannot_hold_is_said() -> None:
    with pytest.raises(cluster.LimitError, match="the hardware cannot hold it"):
        cluster.proposed(CARD, 0, CARD + 1)
    with pytest.raises(cluster.LimitError, match=r"reserve_mib=100"):
        cluster.proposed(CARD, 256 * MIB, CARD - 100 * MIB)
    with pytest.raises(cluster.LimitError, match="leaves nothing"):
        cluster.proposed(100 * MIB, 200 * MIB, None)


def test_the_line_of_the_log() -> None:
    lines = ["boot", LINE, "Device 1 OOM 5 / 4", f"x {LINE.replace(str(WANTED), '7')}"]
    found = cluster.ooms(lines)
    assert found[0] == cluster.Oom(0, WANTED, ALLOWED) and len(found) == 3
    assert cluster.largest(found, None) == found[0] and cluster.largest(found, 1) == cluster.Oom(
        1, 5, 4
    )
    assert cluster.largest(found, 2) is None and cluster.ooms(["Device x OOM 1 / 2"]) == ()


def test_names_of_the_variable() -> None:
    assert cluster.variable(None) == "CUDA_DEVICE_MEMORY_LIMIT"
    assert cluster.variable(0) == "CUDA_DEVICE_MEMORY_LIMIT_0"


def test_a_limit_goes_in_and_out() -> None:
    for limit in (1, 1024, MIB, 24_000 * MIB, WANTED):
        assert cluster.parse_limit(cluster.as_text(limit)) == limit


# The gates of a swapped library: which file counts, what may replace it, whether it stayed.

VERSIONED = (file(), file(f"{BASE}.v2.4.0"), file(f"{BASE}.v2.5.0"))


def codes(found: Iterable[Violation]) -> list[str]:
    """The codes of findings."""
    return [violation.code for violation in found]


@pytest.mark.parametrize(
    ("now", "path"),
    [
        (library_look(), BASE),
        (library_look(files=VERSIONED), f"{BASE}.v2.4.0"),
        (
            library_look(files=VERSIONED, plugins=(plugin("hub/hami:2.5.0@sha256:ab"),)),
            f"{BASE}.v2.5.0",
        ),
        (
            library_look(
                files=VERSIONED,
                plugins=(plugin("hami:beclab-7"),),
                mappers=(mapper(source=f"{BASE}.v2.5.0"),),
            ),
            f"{BASE}.v2.5.0",
        ),
        (
            library_look(files=VERSIONED, plugins=Unreadable(unreadable="no kubectl"), mappers=()),
            None,
        ),
        (
            library_look(
                files=VERSIONED,
                plugins=(),
                mappers=(mapper(source=BASE), mapper(source=f"{BASE}.v2.4.0")),
            ),
            None,
        ),
        (library_look(files=()), None),
    ],
)
def test_the_versioned_file_is_the_one_mounted(now: LibraryLook, path: str | None) -> None:
    """Fault 31; what cannot be told blocks."""
    assert target_of(now).path == path
    found = list(cluster.target_known("one", now, None))
    assert codes(found) == ([] if path else ["libvgpu-target"])


def test_target_names_the_file_and_a_link_is_not_swapped() -> None:
    now = library_look(
        files=(*VERSIONED, file(f"{BASE}.1", kind="other", broken="a symbolic link"))
    )
    assert target_of(now, BASE).path == BASE
    assert target_of(now, "/etc/passwd").path is None
    linked = list(cluster.target_known("one", now, f"{BASE}.1"))
    assert "a symbolic link" in linked[0].summary


def test_another_library_than_the_two_known_ones_blocks() -> None:
    """A new plugin's own, fixed library is told apart from its old one."""
    for digest, wanted in ((ORIGINAL, []), (OUR_LIBRARY, []), (OTHER, ["libvgpu-other"])):
        now = library_look(state=swapped())
        assert codes(cluster.known_content("one", now, file(sha256=digest), OUR_LIBRARY)) == wanted
    assert (
        codes(cluster.known_content("one", library_look(), file(sha256=OTHER), OUR_LIBRARY)) == []
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"elf": None, "broken": "cut off: section 3 ends at byte 9 of 8"}, "cut off"),
        ({"elf": None, "broken": "not an ELF file (starts with 4747)"}, "not an ELF file"),
        ({"elf": elf(machine="aarch64"), "refused": "left out"}, "64 bits aarch64, the host is"),
        ({"elf": elf(bits=32, machine="i386")}, "32 bits i386"),
        ({"elf": elf(shared=False)}, "not a shared library"),
        ({"missing": ("libcudart.so.12",), "refused": "x"}, "the host lacks libcudart.so.12"),
        ({"refused": "the loader leaves it out"}, "the loader leaves it out"),
    ],
)
def test_a_library_that_does_not_fit_is_named(changes: dict[str, object], said: str) -> None:
    """Fault 30."""
    found = list(cluster.candidate_fits("one", library_look(), file(), candidate(**changes)))
    assert codes(found) == ["libvgpu-candidate"] and said in found[0].evidence


def test_a_library_that_fits_is_not() -> None:
    now = library_look()
    assert codes(cluster.candidate_fits("one", now, file(), candidate())) == []
    assert codes(cluster.symbols_kept("one", file(), candidate(), ())) == []
    assert [*cluster.readable("one", now), *cluster.preloaded("one", now)] == []


def test_lost_names_block_unless_each_is_named() -> None:
    """Fault 30: missing symbols."""
    small = candidate(elf=elf(exported=LIBRARY_NAMES[:1]))
    found = list(cluster.symbols_kept("one", file(), small, ("cuInit",)))
    assert codes(found) == ["libvgpu-symbols"] and found[0].evidence == "cuMemAlloc_v2"
    assert "--data without=cuMemAlloc_v2" in found[0].remedy
    assert codes(cluster.symbols_kept("one", file(), small, LIBRARY_NAMES)) == []


def test_of_many_lost_names_each_is_told_and_a_reason_is_enough() -> None:
    """The field report's own swap lost them by the dozen, and nobody types `without` for those."""
    lost = tuple(f"cuHook{n:03}" for n in range(187))
    found = list(cluster.symbols_kept("one", file(elf=elf(exported=lost)), candidate(), ()))
    assert found[0].evidence.split(", ") == list(lost)
    assert found[0].remedy.endswith('libvgpu.py --data waive=libvgpu-symbols --data reason="…"')
    assert apply_waivers(found, ("libvgpu-symbols",), "no pod here calls them") == ([], found)


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("/etc/ld.so.preload", f"{BASE}\n", 1),
        ("/etc/ld.so.preload", "/usr/lib/other.so\n", 0),
        (f"{FOLDER}/ld.so.preload", "", 1),
        (f"{FOLDER}/ld.so.preload", None, 0),
        (f"{FOLDER}/ld.so.preload", Unreadable(unreadable="EIO"), 1),
    ],
)
def test_the_preload_files(path: str, text: object, count: int) -> None:
    assert (
        codes(cluster.preloaded("one", library_look(preload={path: text})))
        == ["libvgpu-preload"] * count
    )


def test_what_cannot_be_read_blocks() -> None:
    dark = Unreadable(unreadable="no permission")
    for changes in ({"files": dark}, {"mappers": dark}, {"state": dark}):
        found = list(cluster.readable("one", library_look(**changes)))
        assert codes(found) == ["libvgpu-unreadable"] and found[0].severity == "block"


def test_doctor_names_the_overwrite_and_who_keeps_the_old_one() -> None:
    """Faults 29 and 32, incident A6."""
    state = swapped()
    back = list(cluster.stayed("one", library_look(state=state)))
    assert codes(back) == ["libvgpu-drift"] and "put its own library back" in back[0].summary
    new = list(cluster.stayed("one", library_look(state=state, files=(file(sha256=OTHER),))))
    assert codes(new) == ["libvgpu-drift"] and "no longer the library" in new[0].summary
    gone = list(cluster.stayed("one", library_look(state=state, files=())))
    assert "it is gone" in gone[0].evidence
    good = library_look(state=state, files=(file(sha256=OUR_LIBRARY),))
    assert (
        codes(cluster.stayed("one", good)) == []
        and codes(cluster.stayed("one", library_look())) == []
    )
    old = list(cluster.old_mapped("one", good))
    assert codes(old) == ["libvgpu-old-mapped"] and old[0].severity == "warn"
    assert old[0].evidence == "ai/lucebox-7d9 (pid 812) has aaaaaaaaaaaa"
    assert (
        codes(
            cluster.old_mapped(
                "one", library_look(state=state, mappers=(mapper(sha256=OUR_LIBRARY),))
            )
        )
        == []
    )
