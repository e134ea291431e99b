"""fabric on booted hosts: what is cabled, a real rate over the link, and what stands in its way."""

from __future__ import annotations

import re

from tests.system.rehearsal import Lab

RATE = re.compile(r"\[test1 -> test2, bond0\] (\d+\.\d) Gbit/s \(TCP, four streams, 5 s\)")


def test_the_state_and_the_rate_are_told_and_nothing_is_left(lab: Lab) -> None:
    """Rehearsal hosts have no RDMA, which is said; what is measured is the real link."""
    before = lab.snapshots()
    done = lab.pyinfra("fabric")
    assert done.rc == 0, done.text
    for name, own, peer, other in (
        ("test1", "10.98.0.1", "10.98.0.2", "test2"),
        ("test2", "10.98.0.2", "10.98.0.1", "test1"),
    ):
        assert f"[{name}] bond0: {own}/" in done.text
        assert f"[{name}] no RDMA device: between nodes there is TCP alone" in done.text
        assert f"[{name}] to {other} {peer} by bond0: 8972 bytes unfragmented" in done.text
    rate = RATE.search(done.text)
    assert rate and float(rate[1]) > 0.1, done.text
    for name in lab.hosts:
        assert lab.ssh(name, "ss -Hltn 'sport = :29680'") == ""
    assert lab.snapshots() == before


def test_a_way_that_a_firewall_drops_is_told(lab: Lab) -> None:
    rule = "INPUT -p tcp --dport 29680 -j DROP"
    lab.ssh("test2", f"sudo iptables -I {rule}")
    try:
        done = lab.pyinfra("fabric")
    finally:
        lab.ssh("test2", f"sudo iptables -D {rule}")
    assert done.rc == 1, done.text
    assert "no way to 10.98.0.2:29680" in done.text and "nft list ruleset" in done.text
    assert "the rate of 1 way(s) could not be had" in done.text and "Traceback" not in done.text


def test_a_fabric_that_is_down_is_told_and_not_measured(lab: Lab) -> None:
    assert lab.verb("fabric", "down").rc == 0
    try:
        done = lab.pyinfra("fabric")
        assert done.rc == 1 and "fabric-down" in done.text, done.text
        assert "Gbit/s (" not in done.text and "Traceback" not in done.text
    finally:
        assert lab.verb("fabric", "up").rc == 0
