"""Who of a server's two threads waits for clients."""

from __future__ import annotations

import threading
import time

from tests.support.waiting import LONG, until
from trtops.transport.crew import LOOK, SHORT, Crew, Turn


class Hand:
    """A thread that stands by once and tells when it leads."""

    def __init__(self, crew: Crew) -> None:
        self.leads = threading.Event()
        self.thread = threading.Thread(target=self._wait, args=(crew,))
        self.thread.start()

    def _wait(self, crew: Crew) -> None:
        crew.stand_by()
        self.leads.set()


def waiting(crew: Crew) -> None:
    until(lambda: "1 standing by" in repr(crew))


def test_the_first_leads_and_the_other_takes_over_before_long_work() -> None:
    crew = Crew(time.monotonic)
    turn = Turn(crew)
    assert not turn(0.0)  # nobody stands by
    crew.stand_by()
    assert not turn(1.0)
    other = Hand(crew)
    waiting(crew)
    assert not other.leads.is_set()
    assert turn(2 * SHORT)
    assert not turn.lost
    assert not other.leads.is_set()  # the device has nothing yet
    turn.begun()
    assert turn.lost
    assert other.leads.wait(LONG)
    assert turn(2 * SHORT)  # the other one leads already
    turn.begun()
    turn.end()
    other.thread.join()


def test_short_work_keeps_the_lead_and_work_that_takes_too_long_loses_it() -> None:
    now = 0.0
    crew = Crew(lambda: now)
    turn = Turn(crew)
    crew.stand_by()
    other = Hand(crew)
    waiting(crew)
    for _ in range(100):
        assert turn(SHORT)
        turn.end()
        assert not turn.lost
    assert not other.leads.is_set()
    until(lambda: not crew._watching)  # it looked, saw that there is no more work, and sleeps
    assert turn(SHORT)
    now += LOOK
    assert other.leads.wait(LONG)
    turn.end()
    assert turn.lost
    other.thread.join()


def test_a_thread_that_ends_leaves_the_lead_to_the_other() -> None:
    crew = Crew(time.monotonic)
    crew.stand_by()
    other = Hand(crew)
    waiting(crew)
    crew.leave()
    assert other.leads.wait(LONG)
    other.thread.join()
    assert repr(crew) == "Crew(led, 0 standing by)"
