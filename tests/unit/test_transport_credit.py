"""A full queue tells a client how many requests it may have in flight, and the client keeps to it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.executors import Session, batching, rows
from tests.support.waiting import until
from trtops.errors import Overloaded
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.transport.call import Call, Reply
from trtops.transport.client import Client
from trtops.transport.credit import Credit
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Counting(Attachment):
    """Counts what crosses."""

    came = 0

    def submit(self, *request: Any) -> Callable[[], None]:
        self.came += 1
        return super().submit(*request)


class Small:
    """Two engines whose queues hold two requests, and a server."""

    def __init__(self, path: Path) -> None:
        self.path, self.sessions, self.executor = path, {"e": Session(), "f": Session()}, Executor()
        for name, session in self.sessions.items():
            self.executor.load(
                name,
                generation=1,
                version="1.0.0",
                digest="sha256:" + "0" * 64,
                backend="fake",
                batching=batching(max_batch=1, queue={"timeout": "60s", "max_size": 2}),
                instances=1,
                open_session=lambda session=session: session,  # type: ignore[misc]
            )
        self.attachment = Counting(self.executor)
        self.server = Server(path, self.attachment)

    def close(self) -> None:
        for session in self.sessions.values():
            session.gate.set()
        self.server.close()
        self.executor.close(drain=5)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    made = Small(tmp_path / "s")
    yield made
    made.close()


def refusal(client: Client) -> Overloaded:
    """What a request is refused with, by the client itself or by the executor."""
    try:
        error = client.wait(client.submit("e", rows(4).inputs, 1)).error
    except Overloaded as own:
        return own
    assert isinstance(error, Overloaded)
    return error


def test_a_client_that_was_refused_sends_no_more_than_it_may(small: Small) -> None:
    small.sessions["e"].hold()
    with Client(small.path, slots=16, input_bytes=4096) as client:
        taken = [client.submit("e", rows(1).inputs, 1)]
        small.sessions["e"].wait_entered()
        taken += [client.submit("e", rows(value).inputs, 1) for value in (2, 3)]
        until(lambda: small.attachment.came == 3, "three requests crossed")
        refused = client.wait(client.submit("e", rows(4).inputs, 1))
        assert isinstance(refused.error, Overloaded)
        assert refused.credit == 3
        crossed, error = 0, refused.error
        while crossed != small.attachment.came:  # the time that it is told is short: it may have passed
            crossed, error = small.attachment.came, refusal(client)
        assert "takes 3 requests of this client at a time" in error.what
        assert 0 < error.retry_after <= refused.error.retry_after
        taken.append(client.submit("f", rows(6).inputs, 1))  # another engine is as it was
        small.sessions["e"].gate.set()
        for call in taken:
            assert client.wait(call).error is None
        while client._credit.told:  # answers raise it, and its time passes
            assert client.infer("e", rows(7).inputs, 1).error is None
        assert client.infer("e", rows(8).inputs, 1).outputs["y"][0, 0] == 16


def test_what_others_have_in_flight_does_not_count(small: Small) -> None:
    small.sessions["e"].hold()
    with (
        Client(small.path, slots=4, input_bytes=4096) as client,
        Client(small.path, slots=4, input_bytes=4096) as other,
    ):
        first = client.submit("e", rows(1).inputs, 1)
        small.sessions["e"].wait_entered()
        waiting = [client.submit("f", rows(9).inputs, 1), client.submit("e", rows(2).inputs, 1)]
        waiting.append(other.submit("e", rows(3).inputs, 1))
        until(lambda: small.attachment.came == 4, "all crossed")
        refused = other.wait(other.submit("e", rows(4).inputs, 1))
        assert isinstance(refused.error, Overloaded)
        assert refused.credit == 1
        small.sessions["e"].gate.set()
        for call in (first, *waiting[:2]):
            assert client.wait(call).error is None
        assert other.wait(waiting[2]).error is None


def test_credit_grows_with_answers_and_ends_with_its_time() -> None:
    now = [100.0]
    credit = Credit(lambda: now[0])
    calls = [Call(slot, slot, None, "e") for slot in range(4)]
    credit.check("e", calls)
    credit.note(calls[0], Reply(error=Overloaded("full", retry_after=2.0), credit=2))
    assert repr(credit) == "Credit(e: 2)"
    credit.check("e", calls[:1])
    credit.check("f", calls)
    with pytest.raises(Overloaded) as refused:
        credit.check("e", calls[:2])
    assert refused.value.retry_after == 2.0
    credit.note(calls[1], Reply())
    credit.check("e", calls[:2])
    with pytest.raises(Overloaded):
        credit.check("e", calls[:3])
    now[0] += 2.0
    credit.check("e", calls)
    assert not credit.told
    credit.note(calls[0], Reply(error=Overloaded("all slots are in use"), credit=0))
    assert not credit.told
