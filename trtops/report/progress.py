"""Progress of a long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.report.escape import visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TextIO

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from typing_extensions import Self

    from trtops.backend.port import Progress

_EVERY = 10.0


class ProgressDisplay:
    """Shows steps as they come. Use it as a context manager and hand it to whoever takes a progress callback.

    On a terminal there is one bar a label, redrawn in place. Elsewhere a line is written when the phase changes and
    every ten seconds within one, so that a log of a CI run stays short and yet shows life. A stream that breaks (a
    closed pipe) silences the display and never stops the work.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float], color: bool = True) -> None:
        """Bind the display to a stream.

        Args:
            stream: where it goes: standard error, so that output stays clean.
            clock: monotonic seconds, e.g. ``time.monotonic``.
            color: whether a bar may have colours; never without a terminal.
        """
        self._stream = stream
        self._clock = clock
        self._color = color
        self._live = stream.isatty()
        self._broken = False
        self._rich: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        """Start; nothing is drawn before the first step."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bars away."""
        if self._rich is not None:
            self._quietly(self._rich.stop)
            self._rich = None

    def __repr__(self) -> str:
        """State: how it draws, and the last phase of each label."""
        kind = "broken" if self._broken else "bar" if self._live else "lines"
        return f"ProgressDisplay({kind}, { ({label: phase for label, (phase, _) in self._told.items()})!r})"

    def of(self, label: str) -> Callable[[Progress], None]:
        """A callback that shows steps under a label, e.g. ``build onnxruntime``."""
        return lambda step: self.step(label, step)

    def step(self, label: str, step: Progress) -> None:
        """Show one step."""
        if not self._broken:
            self._quietly(lambda: self._bar(label, step) if self._live else self._line(label, step))

    def _quietly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._broken = True

    def _line(self, label: str, step: Progress) -> None:
        phase, last = self._told.get(label, ("", 0.0))
        now = self._clock()
        if step.phase == phase and now - last < _EVERY:
            return
        self._told[label] = (step.phase, now)
        count = f" {step.done}/{step.total}" if step.total else ""
        self._stream.write(f"{visible(label)}: {visible(step.phase)}{count}\n")
        self._stream.flush()

    def _bar(self, label: str, step: Progress) -> None:
        bars = self._bars()
        if label not in self._tasks:
            self._tasks[label] = bars.add_task("", total=None)
        self._told[label] = (step.phase, self._clock())
        text = visible(f"{label}: {step.phase}")
        bars.update(self._tasks[label], description=text, completed=step.done, total=step.total or None, refresh=True)

    def _bars(self) -> RichProgress:
        if self._rich is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            console = Console(file=self._stream, force_terminal=True, no_color=not self._color, legacy_windows=False)
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
            )
            self._rich = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._rich.start()
        return self._rich
