"""A client that holds a valid connection and misbehaves. Run as a script: SOCKET STEP ROUNDS."""

from __future__ import annotations

import contextlib
import os
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from trtops.errors import TrtopsError
from trtops.transport.client import Client
from trtops.transport.greeting import connect
from trtops.transport.layout import (
    ANSWER_OFFSET,
    DESCRIPTION_BYTES,
    REQUEST_BYTES,
    RING_HEAD,
    RING_SLEEPS,
    RING_TAIL,
    TENSOR,
)
from trtops.transport.wire import VERSIONS, Ask, Hello, encode

INPUTS = {"x": np.ones((1, 4), np.float32)}
WORDS = [at // 4 for at in (RING_HEAD, RING_TAIL, RING_SLEEPS)]
PACKETS = [
    b"",
    b"x" * 131072,
    b"x" * 150000,
    b"[" * 100000,
    b'{"type":"hello"}',
    b'{"type":"ask","number":' + b"9" * 5000 + b"}",
    encode(Hello(list(VERSIONS), 1, 64, 64)),
]


def ring(client: Client) -> None:
    with contextlib.suppress(OSError):
        os.eventfd_write(client._their_bell, 1)


def indices(client: Client, chance: random.Random) -> None:
    """Both rings' indices and announcements jump."""
    layout = client._segment.layout
    for _ in range(20):
        for start in (layout.submit // 4, layout.complete // 4):
            client._segment.words[start + chance.choice(WORDS)] = chance.choice([0, 1, 2, 2**31, 2**32 - 1])
        ring(client)


def noise(client: Client, chance: random.Random) -> None:
    """Requests and descriptions change while they are read."""
    for _ in range(4):
        client.submit("e", INPUTS, 1)
    for start in client._segment.starts:
        client._segment.memory[start : start + ANSWER_OFFSET] = chance.randbytes(ANSWER_OFFSET)
        ring(client)


def sizes(client: Client, chance: random.Random) -> None:
    """Tensors of no bytes whose other sizes are beyond all memory."""
    for start in client._segment.starts:
        call, _ = client.reserve("e", INPUTS, 1)
        shape = [2**32 - 1] * 4
        shape[chance.randrange(4)] = 0
        at = start + REQUEST_BYTES + DESCRIPTION_BYTES
        fields = TENSOR.unpack_from(client._segment.memory, at)
        fields = (*fields[:2], 4, chance.randrange(3), 0, 0, *shape, 0, 0, 0, 0)
        TENSOR.pack_into(client._segment.memory, at, *fields)
        client.send(call)
        client.wait(call)


def withdrawals(client: Client, chance: random.Random) -> None:
    """Of slots and sequence numbers that there are not, and of those in flight."""
    call = client.submit("e", INPUTS, 1)
    for slot in (call.slot, -1, 2**40):
        for sequence in (call.sequence, 0, 2**63, 2**64 - 1, chance.randrange(2**32)):
            client._say(b'{"type":"withdraw","slot":%d,"sequence":%d}' % (slot, sequence))


def closed(client: Client, _: random.Random) -> None:
    """The bells are closed with requests in flight; the socket stays."""
    for _call in range(4):
        client.submit("e", INPUTS, 1)
    os.close(os.dup(client._bell))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (client._bell, client._their_bell):
        os.dup2(null, fd)
    os.close(null)


def duplicated(client: Client, _: random.Random) -> None:
    """Many wait for each bell."""
    copies = [os.dup(fd) for fd in (client._bell, client._their_bell) for _copy in range(50)]
    with contextlib.ExitStack() as opened:
        for fd in copies:
            opened.callback(os.close, fd)
        for _watch in range(10):
            watch = opened.enter_context(select.epoll())
            for fd in copies[::7]:
                watch.register(fd, select.EPOLLIN | select.EPOLLET)
        for _turn in range(10):
            client.infer("e", INPUTS, 1)


def asking(client: Client, _: random.Random) -> None:
    """It reads no answer, until it is hung up on."""
    client._socket.settimeout(30)
    with contextlib.suppress(OSError):
        while True:
            client._socket.send(encode(Ask(1)))


def packets(client: Client, chance: random.Random) -> None:
    """Whatever a packet may hold."""
    for _ in range(10):
        client._say(chance.choice(PACKETS))


def connects(client: Client, chance: random.Random) -> None:
    """Many connections, greeted or not, dropped at once."""
    for _ in range(20):
        with contextlib.suppress(TrtopsError), connect(Path(sys.argv[1]), 30) as sock:
            if chance.random() < 0.5:
                sock.send(encode(Hello(list(VERSIONS), 4, 4096, 4096)))
    client.cancel(client.submit("e", INPUTS, 1))


def stopped(client: Client, _: random.Random) -> None:
    """The test stops it with requests in flight."""
    for _call in range(4):
        client.submit("e", INPUTS, 1)
    sys.stdout.write("sent\n")
    sys.stdout.flush()
    time.sleep(600)


STEPS: dict[str, Any] = {
    step.__name__: step
    for step in (indices, noise, sizes, withdrawals, closed, duplicated, asking, packets, connects, stopped)
}


def main(path: str, step: str, rounds: int) -> None:
    chance = random.Random(step)
    for _ in range(rounds):
        with contextlib.suppress(TrtopsError, OSError):  # hung up on, as it should be
            client = Client(path, slots=4, input_bytes=4096, output_bytes=4096)
            STEPS[step](client, chance)
            client.close()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
