"""Spreads the evaluation of many documents over the cores: regorus holds Python's lock, so each share has a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import weakref
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from trtops.interpreter import module_command
from trtops.policy.evaluator import receive, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WORTH = 48
"""Documents that a further process has to get for its start (some 0.1 s of compiling) to pay."""

_MOST = 8
_PATIENCE = 2.0


def processes_for(documents: int, cores: int) -> int:
    """Processes to evaluate beside this one. Pure."""
    return max(0, min(cores, _MOST, documents // WORTH) - 1)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(eq=False)
class _Child:
    """A process, its pipes, and the rules that it has compiled."""

    process: subprocess.Popen[bytes]
    asks: IO[bytes]
    answers: IO[bytes]
    rules: set[str] = field(default_factory=set)

    def stop(self) -> None:
        for stream in (self.asks, self.answers):
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Evaluators:
    """Processes that evaluate. Never the last word: what they do not answer is evaluated here."""

    def __init__(self, program: Callable[[str], Mapping[str, Any]]) -> None:
        """Start nothing yet.

        Args:
            program: rule -> ``modules`` (path and text of each, as regorus takes them) and ``data`` that it needs.
        """
        self._program = program
        self._children: list[_Child] = []
        # A caller that forgets to close it, or is ended by an error, leaves no process behind.
        weakref.finalize(self, _stop, self._children)

    def __repr__(self) -> str:
        """Show the processes."""
        return f"Evaluators(pids={[child.process.pid for child in self._children]})"

    def evaluate(
        self, rule: str, documents: Sequence[str], count: int, here: Callable[[Sequence[str]], list[str]]
    ) -> list[str]:
        """Answers of a rule to documents (JSON texts), in their order.

        Args:
            rule: what is asked.
            documents: about what.
            count: processes to use beside this one.
            here: evaluates a share in this process; its errors are this call's.
        """
        shares = [documents[number :: count + 1] for number in range(count + 1)]
        answers = [""] * len(documents)
        try:
            asked = [self._asked(number, rule, share) for number, share in enumerate(shares[1:])]
            answers[:: count + 1] = here(shares[0])
            for number, (child, share) in enumerate(zip(asked, shares[1:], strict=True), start=1):
                found = self._answers(child, len(share))
                answers[number :: count + 1] = here(share) if found is None else found
        except BaseException:
            self.close()  # what they were still to say would be taken for answers to the next question
            raise
        return answers

    def close(self) -> None:
        """Stop the processes. Idempotent."""
        _stop(self._children)

    def _asked(self, number: int, rule: str, share: Sequence[str]) -> _Child | None:
        """The process that was given a share; None where none takes it."""
        child = None
        try:
            child = self._children[number] if number < len(self._children) else _start()
            if child not in self._children:
                self._children.append(child)
            if rule not in child.rules:
                send(child.asks, {"rule": rule, **self._program(rule)})
                child.rules.add(rule)
            send(child.asks, {"rule": rule, "documents": list(share)})
        except OSError:
            if child is not None:
                self._forget(child)
            return None
        return child

    def _forget(self, child: _Child) -> None:
        self._children.remove(child)
        child.stop()

    def _answers(self, child: _Child | None, count: int) -> list[str] | None:
        if child is None:
            return None
        try:
            message = receive(child.answers)
        except (OSError, ValueError):
            message = None
        if message is None or len(message.get("answers", ())) != count:
            self._forget(child)
            return None
        return list(message["answers"])


def _stop(children: list[_Child]) -> None:
    while children:
        children.pop().stop()


def _start() -> _Child:
    process = subprocess.Popen(
        module_command("trtops.policy.evaluator"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what it says there is said better by the evaluation here
    )
    assert process.stdin and process.stdout  # noqa: S101, PT018 - both are pipes, as asked
    return _Child(process, process.stdin, process.stdout)
