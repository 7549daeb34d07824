"""One suite over every registry: what releases rely on."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtops.errors import Conflict, TrtopsError
from trtops.registry.file import FileRegistry
from trtops.registry.memory import MemoryRegistry
from trtops.registry.names import MAX_NAME
from trtops.registry.port import MAX_DOCUMENT_BYTES, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.nacos_server import NacosServer
    from trtops.registry.nacos.registry import NacosRegistry

WAIT = 30.0


Make = Callable[[], Registry]


@pytest.fixture(
    params=[
        "memory",
        "file",
        # The first test waits for the server: half a minute, minutes when its jars are fetched.
        pytest.param("nacos", marks=[pytest.mark.service, pytest.mark.timeout(900)]),
    ]
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Gives empty registries of one kind."""
    made: list[NacosRegistry] = []

    def one() -> Registry:
        if request.param == "memory":
            return MemoryRegistry()
        if request.param == "file":
            return FileRegistry(tmp_path / f"registry-{len(list(tmp_path.iterdir()))}", "dev", interval=0.01)
        server: NacosServer = request.getfixturevalue("nacos")
        made.append(server.registry(server.emptied()))
        return made[-1]

    yield one
    for registry in made:
        registry.close()


@pytest.fixture
def registry(make: Make) -> Registry:
    return make()


class Heard:
    """What a watch delivered, for tests to wait on."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[bytes | None] = queue.Queue()
        self.threads: set[int] = set()
        self.inside = 0
        self.overlapped = False

    def __call__(self, body: bytes | None) -> None:
        self.inside += 1
        self.overlapped |= self.inside > 1
        self.threads.add(threading.get_ident())
        self.bodies.put(body)
        self.inside -= 1

    def until(self, wanted: bytes | None) -> list[bytes | None]:
        """Everything that was delivered up to this body."""
        heard: list[bytes | None] = []
        while not heard or heard[-1] != wanted:
            heard.append(self.bodies.get(timeout=WAIT))
        return heard


def test_reads_what_was_written_at_once(registry: Registry) -> None:
    for number in range(50):
        body = f"{number}".encode()
        registry.swap("channels/cls/stable", body, f"{number - 1}".encode() if number else None)
        assert registry.read("channels/cls/stable") == body


def test_remove_takes_what_was_looked_at_and_nothing_else(registry: Registry) -> None:
    registry.create("a/b", b"one")
    registry.create("a/c", b"two")
    with pytest.raises(Conflict, match="another document"):
        registry.remove("a/b", b"two")
    assert registry.read("a/b") == b"one"
    assert registry.remove("a/b", b"one") is True
    assert registry.read("a/b") is None
    assert registry.names() == ("a/c",)
    assert registry.remove("a/b", b"one") is False
    assert registry.create("a/b", b"three") is True
    assert registry.read("a/b") == b"three"


def test_a_watch_hears_of_a_removal(registry: Registry) -> None:
    registry.create("a/b", b"one")
    heard = Heard()
    watch = registry.watch("a/b", heard)
    heard.until(b"one")
    registry.remove("a/b", b"one")
    heard.until(None)
    watch.close()


def test_what_is_not_there_reads_as_none(registry: Registry) -> None:
    assert registry.read("channels/cls/stable") is None
    registry.create("channels/cls", b"a")
    assert registry.read("channels/cls/stable") is None
    assert registry.read("channels") is None


def test_create_writes_once(registry: Registry) -> None:
    assert registry.create("a/b", b"one") is True
    assert registry.create("a/b", b"one") is False
    with pytest.raises(Conflict, match="another document"):
        registry.create("a/b", b"two")
    assert registry.read("a/b") == b"one"


def test_swap_replaces_only_what_is_expected(registry: Registry) -> None:
    with pytest.raises(Conflict):
        registry.swap("a", b"new", b"old")
    assert registry.read("a") is None
    registry.swap("a", b"one", None)
    for expected in (None, b"two", b""):
        with pytest.raises(Conflict):
            registry.swap("a", b"three", expected)
    assert registry.read("a") == b"one"
    registry.swap("a", b"two", b"one")
    assert registry.read("a") == b"two"


def test_an_empty_document_is_a_document(registry: Registry) -> None:
    registry.create("a", b"")
    assert registry.read("a") == b""
    with pytest.raises(Conflict):
        registry.swap("a", b"x", None)
    registry.swap("a", b"x", b"")


def test_names_are_sorted_and_by_prefix(registry: Registry) -> None:
    for name in ("b/c", "a", "b/a", "bb", "b/c/d"):
        registry.create(name, b"x")
    assert registry.names() == ("a", "b/a", "b/c", "b/c/d", "bb")
    assert registry.names("b/") == ("b/a", "b/c", "b/c/d")
    assert registry.names("b/c") == ("b/c", "b/c/d")
    assert registry.names("z") == ()


def test_no_name_hides_another(registry: Registry) -> None:
    """Documents beside folders of the same name, and names that look like files of the folder."""
    names = ("a", "a/a", "a.json", "a.json/a", "a.json/a.json", ".lock", ".tmp-1", ".tmp-1/x", "a.json.json")
    for name in names:
        registry.create(name, name.encode())
    assert registry.names() == tuple(sorted(names))
    assert {name: registry.read(name) for name in names} == {name: name.encode() for name in names}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ".",
        "..",
        "a/..",
        "../a",
        "a/./b",
        "a b",
        "a:b",
        "ä",
        "a\n",
        "a\0",
        "a~",
        "x" * (MAX_NAME + 1),
    ],
)
def test_bad_names_are_refused_everywhere(registry: Registry, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: registry.read(name),
        lambda: registry.create(name, b""),
        lambda: registry.swap(name, b"", None),
        lambda: registry.watch(name, lambda _: None),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not a document's name"):
            call()


def test_the_longest_name_and_the_largest_document(registry: Registry) -> None:
    name, body = "x" * MAX_NAME, b"x" * MAX_DOCUMENT_BYTES
    registry.create(name, body)
    assert registry.read(name) == body
    with pytest.raises(ValueError, match="100001 bytes"):
        registry.create("b", body + b"x")
    with pytest.raises(ValueError, match="100001 bytes"):
        registry.swap("b", body + b"x", None)
    assert registry.names() == (name,)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["a", "a/b", "c"]), st.binary(max_size=4), st.binary(max_size=4))))
def test_behaves_like_a_dictionary(make: Make, steps: list[tuple[str, bytes, bytes]]) -> None:
    fresh = make()
    model: dict[str, bytes] = {}
    for name, body, expected in steps:
        before = model.get(name)
        wanted = before if body < expected else expected
        try:
            fresh.swap(name, body, wanted)
        except Conflict:
            assert before != wanted
        else:
            assert before == wanted
            model[name] = body
    assert {name: fresh.read(name) for name in fresh.names()} == model


@pytest.mark.parametrize("operation", ["create", "swap"])
def test_ten_threads_at_once_have_one_winner(registry: Registry, operation: str) -> None:
    for start in (None, b"start"):
        name = f"race/{operation}/{start is None}"
        if start is not None and operation == "create":
            continue
        if start is not None:
            registry.create(name, start)
        outcomes = _race(registry, name, operation, start)
        won = [body for body, error in outcomes if error is None]
        assert len(outcomes) == 10
        assert len(won) == 1
        assert all(error is None or isinstance(error, Conflict) for _, error in outcomes)
        assert registry.read(name) == won[0]


def _race(registry: Registry, name: str, operation: str, start: bytes | None) -> list[tuple[bytes, Exception | None]]:
    barrier = threading.Barrier(10)
    outcomes: list[tuple[bytes, Exception | None]] = []

    def run(body: bytes) -> None:
        barrier.wait(WAIT)
        try:
            if operation == "create":
                registry.create(name, body)
            else:
                registry.swap(name, body, start)
        except TrtopsError as error:
            outcomes.append((body, error))
        else:
            outcomes.append((body, None))

    threads = [threading.Thread(target=run, args=(f"{number}".encode(),)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    return outcomes


def test_a_watch_starts_with_what_is_there(registry: Registry) -> None:
    heard = Heard()
    watch = registry.watch("a", heard)
    assert heard.until(None) == [None]
    registry.create("a", b"one")
    assert heard.until(b"one") == [b"one"]
    watch.close()
    later = Heard()
    watch = registry.watch("a", later)
    assert later.until(b"one") == [b"one"]
    watch.close()


def test_a_watch_delivers_the_newest_in_order_and_one_at_a_time(registry: Registry) -> None:
    heard = Heard()
    watch = registry.watch("a", heard)
    before: bytes | None = None
    for number in range(200):
        body = f"{number:03}".encode()
        registry.swap("a", body, before)
        before = body
    bodies = [body for body in heard.until(b"199") if body is not None]
    watch.close()
    assert bodies == sorted(set(bodies))
    assert len(heard.threads) == 1
    assert threading.get_ident() not in heard.threads
    assert not heard.overlapped


def test_a_watch_hears_of_its_own_document_only(registry: Registry) -> None:
    heard = Heard()
    watch = registry.watch("a/b", heard)
    heard.until(None)
    registry.create("a", b"x")
    registry.create("a/c", b"x")
    registry.create("a/b", b"mine")
    assert heard.until(b"mine") == [b"mine"]
    watch.close()


def test_a_handler_that_raises_keeps_the_watch(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()

    def handler(body: bytes | None) -> None:
        heard(body)
        raise RuntimeError("the handler's own mistake")

    with caplog.at_level(logging.ERROR, "trtops.registry"):
        watch = registry.watch("a", handler)
        before: bytes | None = None
        heard.until(None)
        for body in (b"1", b"2", b"3"):
            registry.swap("a", body, before)
            before = body
            heard.until(body)
        watch.close()
    assert "the handler of a failed; the watch goes on" in caplog.text
    assert "the handler's own mistake" in caplog.text


def test_nothing_is_delivered_after_close(registry: Registry) -> None:
    heard = Heard()
    watch = registry.watch("a", heard)
    heard.until(None)
    watch.close()
    watch.close()
    registry.create("a", b"late")
    other = Heard()
    second = registry.watch("a", other)  # by the time that this one hears, the first would have heard as well
    other.until(b"late")
    second.close()
    assert heard.bodies.empty()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trtops-watch")]


def test_a_handler_may_close_its_own_watch(registry: Registry) -> None:
    holder: queue.Queue[object] = queue.Queue()
    heard = Heard()

    def handler(body: bytes | None) -> None:
        heard(body)
        holder.get(timeout=WAIT).close()  # type: ignore[attr-defined]

    holder.put(registry.watch("a", handler))
    heard.until(None)
    registry.create("a", b"late")
    assert heard.bodies.empty()
