"""Laws of routes: shares, stickiness, as few moves as possible; and of the page: nobody reads half a change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.errors import InputError
from trtops.transport.routes import (
    BUCKETS,
    MAX_ENGINES,
    MAX_SEATS,
    Page,
    PageView,
    Route,
    Seat,
    assign,
    bucket_of,
    bucket_of_number,
    decode_routes,
    encode_routes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

weights = st.lists(st.integers(0, 1000), min_size=1, max_size=MAX_SEATS).filter(any)
changes = st.lists(weights, min_size=1, max_size=5)


def seats_of(shares: list[int]) -> list[Seat]:
    return [Seat(identity, identity + 1, weight) for identity, weight in enumerate(shares)]


def holders(route: Route) -> list[int]:
    return [route.seats[index].identity for index in route.table]


@given(changes)
def test_shares_follow_the_weights_whatever_was_before(steps: list[list[int]]) -> None:
    route = None
    for shares in steps:
        route = assign(route, seats_of(shares))
        held = Counter(holders(route))
        assert sum(held.values()) == BUCKETS
        for identity, weight in enumerate(shares):
            exact = weight * BUCKETS / sum(shares)
            assert held[identity] == 0 if weight == 0 else held[identity] >= 1
            # A bucket of rounding, and what seats of less than a bucket were given beyond their share.
            assert abs(held[identity] - exact) <= 1 + sum(0 < 2 * one * BUCKETS < 2 * sum(shares) for one in shares)


@given(changes)
def test_a_change_moves_no_bucket_that_it_need_not(steps: list[list[int]]) -> None:
    route = assign(None, seats_of(steps[0]))
    for shares in steps[1:]:
        after = assign(route, seats_of(shares))
        had, has = Counter(holders(route)), Counter(holders(after))
        moved = sum(one != other for one, other in zip(holders(route), holders(after), strict=True))
        assert moved == sum(max(0, has[identity] - had[identity]) for identity in has)
        assert assign(after, seats_of(shares)) == after
        route = after


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6))
def test_two_seats_depend_on_the_weights_alone(canary: list[int]) -> None:
    route = None
    for percent in canary:
        route = assign(route, seats_of([100 - percent, percent]))
        assert route == assign(None, seats_of([100 - percent, percent]))


@given(st.sampled_from([1, 5, 10, 25, 50, 75]), st.text(max_size=8))
@settings(max_examples=30)
def test_keys_are_sticky_and_spread_by_weight(percent: int, prefix: str) -> None:
    route = assign(None, seats_of([100 - percent, percent]))
    keys = [f"{prefix}{number}".encode() for number in range(4000)]
    share = sum(route.worker(bucket_of(key)) == 2 for key in keys) / len(keys)
    assert abs(share - percent / 100) < 0.04
    more = assign(route, seats_of([100 - percent - 5, percent + 5]))
    # Who was in the canary stays there: a step up never sends a client back.
    assert all(more.worker(bucket_of(key)) == 2 for key in keys if route.worker(bucket_of(key)) == 2)


@given(st.integers(0, 1 << 40))
def test_numbers_are_spread_evenly(start: int) -> None:
    found = Counter(bucket_of_number(start + number) for number in range(10 * BUCKETS))
    assert set(found) <= set(range(BUCKETS))
    assert min(found[bucket] for bucket in range(BUCKETS)) >= 5
    assert max(found.values()) <= 15


def test_buckets_of_keys_are_written_down_for_other_languages() -> None:
    assert [bucket_of(key) for key in (b"", b"a", b"user-1", "ä".encode())] == PINNED


PINNED = [0, 977, 710, 664]


@pytest.mark.parametrize("wrong", [[0, 0], [1] * (MAX_SEATS + 1), [-1, 2]])
def test_a_route_without_a_seat_is_refused(wrong: list[int]) -> None:
    with pytest.raises(InputError):
        assign(None, seats_of(wrong))


def routes_of(number: int, engines: int = 3) -> dict[str, Route]:
    """Routes whose every part tells the number."""
    seats = [Seat(0, number + 1, 500, number), Seat(1, number + 2, 500, number)]
    return {f"engine-{index}": assign(None, seats) for index in range(engines)}


@given(st.lists(weights, max_size=4), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_copy_reads_as_it_was_written(steps: list[list[int]], worker: int, generation: int) -> None:
    routes = {
        f"e-{number}": assign(
            None, [Seat(i, worker, weight, generation, f"channel-{i}") for i, weight in enumerate(shares)]
        )
        for number, shares in enumerate(steps)
    }
    read = decode_routes(encode_routes(routes))
    assert read is not None
    assert {name: route.table for name, route in read.items()} == {name: r.table for name, r in routes.items()}
    for name, route in read.items():
        for seat, wanted in zip(route.seats, routes[name].seats, strict=True):
            assert (seat.worker, seat.generation) == (wanted.worker, wanted.generation)
            assert seat.channel == wanted.channel


@given(st.binary(min_size=64, max_size=4096))
def test_noise_is_no_copy_and_no_crash(noise: bytes) -> None:
    decode_routes(noise)


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.close()


def test_a_reader_sees_each_change_and_the_same_object_until_then(page: Page) -> None:
    view = PageView(page.fd)
    assert view.routes == {}
    page.write(routes_of(1))
    assert view.routes["engine-0"].worker(0) in {2, 3}
    assert view.routes is view.routes
    page.write(routes_of(7, engines=1))
    assert list(view.routes) == ["engine-0"]
    assert repr(view) == "PageView(sequence 3, 1 engines)"


def test_a_page_holds_so_many_engines_and_says_so(page: Page) -> None:
    page.write(routes_of(1, engines=MAX_ENGINES))
    with pytest.raises(InputError, match=f"{MAX_ENGINES + 1} engines"):
        page.write(routes_of(2, engines=MAX_ENGINES + 1))
    with pytest.raises(InputError, match="bytes"):
        page.write({"x" * 65: routes_of(2)["engine-0"]})
    assert len(PageView(page.fd).routes) == MAX_ENGINES


@given(st.integers(0, 9800), st.integers(0, 3))
@settings(max_examples=60)
def test_a_writer_that_dies_in_the_middle_leaves_the_last_copy(cut: int, writes: int) -> None:
    page = Page()
    try:
        view = PageView(page.fd)
        for number in range(writes):
            page.write(routes_of(number))
        before = PageView(page.fd).routes
        page.stage(encode_routes(routes_of(99))[:cut])  # and no more: it is dead
        assert view.routes == before
        assert PageView(page.fd).routes == before
    finally:
        page.close()


def test_nobody_but_the_writer_can_write(page: Page) -> None:
    import mmap

    with pytest.raises(PermissionError):
        mmap.mmap(page.fd, 0)
    with pytest.raises(PermissionError):
        os.pwrite(page.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.truncate(page.fd, 0)


def test_what_is_no_page_is_refused() -> None:
    fd = os.memfd_create("nothing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(InputError, match="not sealed"):
            PageView(fd)
    finally:
        os.close(fd)


WRITER = """
import os, sys, time
from tests.property.test_transport_routes_laws import routes_of
from trtops.transport.routes import Page, encode_routes
page = Page()
copies = [encode_routes(routes_of(number, engines=40)) for number in range(8)]
page.stage(copies[0])
page.publish()
sys.stdout.write(f"/proc/{os.getpid()}/fd/{page.fd}\\n")
sys.stdout.flush()
number = 0
while True:
    page.stage(copies[number % 8])
    page.publish()
    number += 1
    if number % 3 == 0:
        time.sleep(0.0002)
"""


@pytest.mark.service
def test_a_reader_never_sees_a_torn_page_while_writers_run_and_are_killed() -> None:
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True) as writer:
            try:
                assert writer.stdout is not None
                fd = os.open(writer.stdout.readline().strip(), os.O_RDONLY)
                view = PageView(fd)
                seen: Counter[int] = Counter()
                end = time.monotonic() + 60
                while len(seen) <= 3 or seen.total() < 300:
                    seen[_whole(view)] += 1
                    assert time.monotonic() < end
                writer.send_signal(signal.SIGKILL)
                writer.wait()
                _whole(view)
                assert _whole(PageView(fd)) == _whole(view)
                os.close(fd)
            finally:
                writer.kill()


def _whole(view: PageView) -> int:
    """The number that every part of the page tells."""
    routes = view.routes
    numbers = {seat.generation for route in routes.values() for seat in route.seats}
    assert len(numbers) == 1, numbers
    (number,) = numbers
    assert len(routes) == 40
    for route in routes.values():
        assert [seat.worker for seat in route.seats] == [number + 1, number + 2]
    return number
