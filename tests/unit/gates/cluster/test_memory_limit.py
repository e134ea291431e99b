"""The arithmetic of a memory limit, with the seed's numbers."""

from __future__ import annotations

import pytest

from gates.cluster import memory_limit as m

MIB = m.MIB
CARD = 24_463 * MIB
WANTED, ALLOWED = 24_232_551_680, 24_117_248_000
LINE = f"[HAMI-core ERROR allocator.c:56]: Device 0 OOM {WANTED} / {ALLOWED}"


@pytest.mark.parametrize(
    ("text", "size"),
    [("24000m", 25_165_824_000), ("24000M", 25_165_824_000), ("23g", 24_696_061_952),
     ("1k", 1024), ("25165824000", 25_165_824_000), ("23000m", ALLOWED)],
)  # fmt: skip
def test_units_are_binary(text: str, size: int) -> None:
    assert m.parse_limit(text) == size


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
    with pytest.raises(m.LimitError, match=said):
        m.parse_limit(text)


def test_the_seeds_limit_is_accepted_with_463_mib_left() -> None:
    """Incident A5: 24000m against 24,463 MiB, 24,232,551,680 bytes wanted."""
    lines = m.checked(m.parse_limit("24000m"), CARD, 256 * MIB, WANTED)
    assert lines[1].endswith("25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB")
    assert lines[2].startswith("left      485,490,688 bytes = 463.0 MiB = 0.45 GiB")
    assert "headroom 933,272,320 bytes = 890.0 MiB" in lines[3]


def test_the_seeds_first_limit_is_too_small() -> None:
    with pytest.raises(
        m.LimitError, match=r"115,303,680 bytes = 110\.0 MiB = 0\.11 GiB too little"
    ):
        m.checked(ALLOWED, CARD, 256 * MIB, WANTED)


def test_more_than_the_hardware_and_less_than_the_reserve() -> None:
    with pytest.raises(m.LimitError, match="more than the hardware has"):
        m.checked(m.parse_limit("24464m"), CARD, 0, None)
    with pytest.raises(m.LimitError, match="allowed: up to 24207m"):
        m.checked(m.parse_limit("24208m"), CARD, 256 * MIB, None)
    assert m.checked(CARD, CARD, 0, CARD)


def test_the_proposal_is_all_but_the_reserve() -> None:
    assert m.as_text(m.proposed(CARD, 463 * MIB, WANTED)) == "24000m"
    assert m.as_text(m.proposed(CARD, 256 * MIB, WANTED)) == "24207m"
    assert m.as_text(m.proposed(CARD + 5, 0, None)) == "24463m"


def test_what_the_hardware_cannot_hold_is_said() -> None:
    with pytest.raises(m.LimitError, match="the hardware cannot hold it"):
        m.proposed(CARD, 0, CARD + 1)
    with pytest.raises(m.LimitError, match=r"reserve_mib=100"):
        m.proposed(CARD, 256 * MIB, CARD - 100 * MIB)
    with pytest.raises(m.LimitError, match="leaves nothing"):
        m.proposed(100 * MIB, 200 * MIB, None)


def test_the_line_of_the_log() -> None:
    lines = ["boot", LINE, "Device 1 OOM 5 / 4", f"x {LINE.replace(str(WANTED), '7')}"]
    found = m.ooms(lines)
    assert found[0] == m.Oom(0, WANTED, ALLOWED) and len(found) == 3
    assert m.largest(found, None) == found[0] and m.largest(found, 1) == m.Oom(1, 5, 4)
    assert m.largest(found, 2) is None and m.ooms(["Device x OOM 1 / 2"]) == ()


def test_names_of_the_variable() -> None:
    assert m.variable(None) == "CUDA_DEVICE_MEMORY_LIMIT"
    assert m.variable(0) == "CUDA_DEVICE_MEMORY_LIMIT_0"


def test_a_limit_goes_in_and_out() -> None:
    for limit in (1, 1024, MIB, 24_000 * MIB, WANTED):
        assert m.parse_limit(m.as_text(limit)) == limit
