"""Order of memory between two ends: which accesses a barrier stands between, and that there is one to call."""

from __future__ import annotations

import ctypes
import platform
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.executors import rows
from tests.support.transports import Stack
from trtops.errors import Unavailable
from trtops.transport import fence, ring, routes
from trtops.transport.layout import RING_ENTRIES, RING_HEAD, RING_SLEEPS, RING_TAIL
from trtops.transport.ring import FencedReader, FencedWriter, Violation
from trtops.transport.routes import Page, PageView, Seat, assign

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {RING_HEAD // 4: "head", RING_TAIL // 4: "tail", RING_SLEEPS // 4: "sleeps"}


class Words:
    """32-bit words that note what is done to them."""

    def __init__(self) -> None:
        self.values = [0] * 64
        self.log: list[str] = []

    def name(self, index: int) -> str:
        return NAMES.get(index, f"entry {index - RING_ENTRIES // 4}")

    def __getitem__(self, index: int) -> int:
        self.log.append(f"load {self.name(index)}")
        return self.values[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.log.append(f"store {self.name(index)}")
        self.values[index] = value

    def fence(self) -> None:
        self.log.append("fence")

    def taken(self) -> list[str]:
        log, self.log = self.log, []
        return log


def ends() -> tuple[Any, FencedWriter, FencedReader]:
    words: Any = Words()
    return words, FencedWriter(words, 0, 4, words.fence), FencedReader(words, 0, 4, words.fence)


def test_barriers_stand_where_a_ring_needs_them() -> None:
    words, writer, reader = ends()
    assert not writer.push(7)
    assert words.taken() == ["store entry 0", "fence", "store tail", "fence", "load sleeps"]
    assert reader.pop() == [7]
    assert words.taken() == ["load tail", "fence", "load entry 0", "store head"]
    assert reader.pop() == []
    assert words.taken() == ["load tail"]
    assert reader.announce_sleep()
    assert words.taken() == ["store sleeps", "fence", "load tail"]
    assert writer.push(8)
    assert words.taken() == ["store entry 1", "fence", "store tail", "fence", "load sleeps", "store sleeps"]
    assert not writer.push(9)
    words.taken()
    assert reader.pop() == [8, 9]
    assert words.taken() == ["load tail", "fence", "load entry 1", "load entry 2", "store head"]
    words.values[RING_TAIL // 4] = 100
    with pytest.raises(Violation, match="claims to hold"):
        reader.pop()


def test_ends_are_fenced_where_memory_is_not_ordered_and_serve_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = fence.full_fence()

    def counted() -> None:
        calls.append(1)
        real()

    monkeypatch.setattr(ring, "ORDERED", False)
    monkeypatch.setattr(ring, "full_fence", lambda: counted)
    stack = Stack(tmp_path / "s")
    try:
        with stack.client() as client, stack.client() as other:
            assert isinstance(client._submit, FencedWriter)
            assert isinstance(client._complete, FencedReader)
            for index in range(50):
                for one in (client, other):
                    assert one.infer("e", rows(index).inputs, 1).outputs["y"][0, 0] == 2 * index
        assert len(calls) >= 100 * 6  # two for each push, one for each pop that finds something, at both ends
    finally:
        stack.close()


def test_a_machine_that_keeps_order_calls_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Any:
        raise AssertionError("no barrier is needed here")

    monkeypatch.setattr(ring, "ORDERED", True)
    monkeypatch.setattr(fence, "ORDERED", True)
    monkeypatch.setattr(ring, "full_fence", never)
    monkeypatch.setattr(fence, "full_fence", never)
    stack = Stack(tmp_path / "s")
    with stack.client() as client:
        assert client.infer("e", rows(1).inputs, 1).error is None
    stack.close()
    Page().close()


def test_where_there_is_no_barrier_a_client_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "ORDERED", False)
    monkeypatch.setattr(fence, "_of_libatomic", lambda: None)
    monkeypatch.setattr(fence, "_of_the_kernel", lambda _: None)
    fence.full_fence.cache_clear()
    stack = Stack(tmp_path / "s")
    try:
        with pytest.raises(Unavailable, match="does not keep memory in order") as raised:
            stack.client()
        assert "install libatomic" in str(raised.value.fix)
    finally:
        stack.close()
        fence.full_fence.cache_clear()


def test_the_kernel_has_a_barrier_too(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = dict(fence._MEMBARRIER)
    monkeypatch.setattr(fence, "_MEMBARRIER", numbers)
    if ctypes.CDLL(None).syscall(numbers[platform.machine()], 0, 0, 0) < 0:  # MEMBARRIER_CMD_QUERY
        pytest.skip("this kernel, or what confines this process, has no membarrier")
    call = fence._of_the_kernel(platform.machine())
    assert call is not None
    assert call() == 0
    assert fence._of_the_kernel("a machine of tomorrow") is None
    monkeypatch.setitem(numbers, platform.machine(), 100_000)
    assert fence._of_the_kernel(platform.machine()) is None


def test_a_page_of_routes_is_ordered_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    page = Page()
    view = PageView(page.fd)
    route = assign(None, [Seat(1, worker=3, weight=1)])

    class Logged:
        def __init__(self, words: Any) -> None:
            self.words = words

        def __getitem__(self, index: int) -> int:
            log.append("load number")
            return int(self.words[index])

        def __setitem__(self, index: int, value: int) -> None:
            log.append("store number")
            self.words[index] = value

        def release(self) -> None:
            self.words.release()

    class Copies:
        def __init__(self, memory: Any) -> None:
            self.memory = memory
            self.close = memory.close

        def __setitem__(self, where: slice, body: bytes) -> None:
            log.append("store copy")
            self.memory[where] = body

    monkeypatch.setattr(routes, "order", partial(log.append, "fence"))
    monkeypatch.setattr(page, "_words", Logged(page._words))
    monkeypatch.setattr(page, "_map", Copies(page._map))
    page.write({"e": route})
    kept = [entry for entry in log if entry != "load number"]
    assert kept == ["store copy", "fence", "store number", "fence"]
    log.clear()
    monkeypatch.setattr(view, "_words", Logged(view._words))
    found = view.find("e")
    assert found is not None
    assert found.worker(0) == 3
    assert log[-4:] == ["load number", "fence", "fence", "load number"]
    log.clear()
    assert view.find("e") is found
    assert log == ["load number"]  # nothing changed: no barrier
    page.close()
