"""Work at the same time: all of it, in order, and never more at once than is said."""

from __future__ import annotations

import threading

import pytest

from node.core.parallel import each


def test_results_keep_the_order_of_the_items() -> None:
    assert each(lambda n: n * n, range(50), 4) == [n * n for n in range(50)]
    assert each(str, [], 4) == [] and each(str, [1], 0) == ["1"]


def test_as_many_at_once_as_are_allowed() -> None:
    together = threading.Barrier(3)
    # passed only when three wait in it at the same time, twice
    assert len(each(lambda _: together.wait(5), range(6), 3)) == 6


def test_never_more_at_once_than_are_allowed() -> None:
    now, most, lock = [0], [0], threading.Lock()

    def work(_: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1

    each(work, range(12), 2)
    assert most[0] == 2


def test_the_first_error_is_raised_when_all_is_done() -> None:
    done: list[int] = []

    def work(n: int) -> None:
        done.append(n)
        if n in (1, 3):
            raise ValueError(str(n))

    with pytest.raises(ValueError, match=r"^1$"):
        each(work, range(5), 2)
    assert sorted(done) == [0, 1, 2, 3, 4]
