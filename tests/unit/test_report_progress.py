from __future__ import annotations

import io
from typing import Any

from trtops.backend.port import Progress
from trtops.report.progress import ProgressDisplay


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def steps(display: ProgressDisplay, clock: Clock, *pairs: tuple[str, int, float]) -> None:
    show = display.of("build onnxruntime")
    for phase, done, seconds in pairs:
        clock.now += seconds
        show(Progress(phase=phase, done=done, total=10))


def test_lines_come_at_a_new_phase_and_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressDisplay(stream, clock=clock) as display:
        steps(
            display,
            clock,
            ("load", 0, 0),
            ("tune", 1, 1),
            ("tune", 2, 5),
            ("tune", 3, 6),
            ("tune", 4, 1),
            ("write", 9, 1),
        )
    assert stream.getvalue().splitlines() == [
        "build onnxruntime: load 0/10",
        "build onnxruntime: tune 1/10",
        "build onnxruntime: tune 3/10",
        "build onnxruntime: write 9/10",
    ]


def test_unknown_totals_are_left_out_and_control_characters_are_shown() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, clock=Clock()) as display:
        display.step("fetch", Progress(phase="\x1b[2Jwheel\n"))
    assert stream.getvalue() == "fetch: \\x1b[2Jwheel\\n\n"


def test_labels_are_told_apart() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, clock=Clock()) as display:
        display.step("a", Progress(phase="x"))
        display.step("b", Progress(phase="x"))
        assert repr(display) == "ProgressDisplay(lines, {'a': 'x', 'b': 'x'})"
    assert stream.getvalue() == "a: x\nb: x\n"


def test_a_terminal_gets_a_bar_that_is_taken_away() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressDisplay(stream, clock=clock, color=False) as display:
        steps(display, clock, ("tune [red]", 3, 1), ("tune [red]", 7, 1))
        assert repr(display).startswith("ProgressDisplay(bar")
    written = stream.getvalue()
    assert "build onnxruntime: tune [red]" in written
    assert "7/10" in written
    assert written.rstrip().endswith("\x1b[2K")


def test_nothing_is_drawn_where_nothing_happens() -> None:
    stream = Terminal()
    with ProgressDisplay(stream, clock=Clock()):
        pass
    assert stream.getvalue() == ""


def test_a_broken_stream_never_stops_the_work() -> None:
    for stream in (Broken(), _closed()):
        with ProgressDisplay(stream, clock=Clock()) as display:
            display.step("a", Progress(phase="x"))
            display.step("a", Progress(phase="y"))
            assert repr(display).startswith("ProgressDisplay(broken")


def _closed() -> Any:
    class Closed(io.StringIO):
        def isatty(self) -> bool:
            return False

    stream = Closed()
    stream.close()
    return stream
