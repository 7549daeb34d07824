"""A process that evaluates documents with regorus for another: ``python -m trtops.policy.evaluator``.

It imports nothing but regorus, so that it is there in some 30 ms. Messages on standard input and output are JSON behind
their length (4 bytes, big-endian): ``{"rule": RULE, "modules": [[path, text], ...], "data": {...}}`` compiles what a
rule needs, ``{"rule": RULE, "documents": [JSON text, ...]}`` is answered by ``{"answers": [JSON text, ...]}``. It ends
with its input. Whatever goes wrong ends it too: the other side then evaluates for itself, and so finds what is to be
said.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTH = struct.Struct(">I")


def send(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Write a message.

    Raises:
        OSError: nobody reads any more.
    """
    body = json.dumps(message, allow_nan=False).encode()
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def receive(stream: IO[bytes]) -> dict[str, Any] | None:
    """Read a message; None at the end.

    Raises:
        ValueError: it was cut short.
    """
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (-1,)
    body = stream.read(length) if length >= 0 else b""
    if len(body) != length:
        raise ValueError("a message was cut short")
    message: dict[str, Any] = json.loads(body)
    return message


def main() -> None:
    """Compile and answer until the input ends."""
    import regorus

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: who started this one decides
    engines: dict[str, Any] = {}
    while (message := receive(sys.stdin.buffer)) is not None:
        rule = message["rule"]
        if "modules" in message:
            engines[rule] = regorus.Engine()
            for path, text in message["modules"]:
                engines[rule].add_policy(path, text)
            engines[rule].add_data_json(json.dumps(message["data"]))
            continue
        answers = []
        for document in message["documents"]:
            engines[rule].set_input_json(document)
            answers.append(engines[rule].eval_rule_as_json(rule))
        send(sys.stdout.buffer, {"answers": answers})


if __name__ == "__main__":
    main()
